"""The attention patterns of the sparse cross-encoder paper, by name (Schlatt et al. 2024, table 1)."""

from bandrank_kernels.windowed_attention import AttentionPattern

FULL = AttentionPattern()


def sparse(window: int | None) -> AttentionPattern:
    """The paper's own: candidates see a window, [CLS] and the query; the query sees only itself."""
    return AttentionPattern(window=window, query_to_cls=False, query_to_candidate=False)


def longformer(window: int) -> AttentionPattern:
    """Candidates see a window; [CLS] and the query are global (Beltagy et al. 2020).

    QDS-Transformer (Jiang et al. 2020) is this pattern with start-of-sentence tokens moved among the query rows.
    """
    return AttentionPattern(window=window)
