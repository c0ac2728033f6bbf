"""Attention patterns of the sparse cross-encoder paper (Schlatt et al. 2024, arXiv 2312.17649, table 1)."""

from dataclasses import replace

from bandrank_kernels.windowed_attention import AttentionPattern

FULL = AttentionPattern()
sparse = AttentionPattern.sparse  # the paper's own


def longformer(window: int) -> AttentionPattern:
    """Candidates attend to a window; [CLS] and the query are global (Beltagy et al. 2020).

    QDS-Transformer (Jiang et al. 2020) has this pattern, with sentence tokens moved to the query's rows.
    """
    return AttentionPattern(window=window)


def narrowed(pattern: AttentionPattern, window: int | None) -> AttentionPattern:
    """The pattern with a window of at most `window`."""
    if window is None or (pattern.window is not None and pattern.window <= window):
        return pattern
    return replace(pattern, window=window)
