"""The page of results, and their JSON lines."""

from collections.abc import Sequence

from bandrank_bench.aims import aims_table
from bandrank_bench.calibrate import TOLERANCE
from bandrank_bench.cpu.agreement import FLOAT32_TOLERANCE
from bandrank_bench.cpu.report import TIMING, agreement_table, number, timing_cells
from bandrank_bench.cpu.summary import best_peer, speed_up
from bandrank_bench.families.aims import judge_memory, judge_speed
from bandrank_bench.families.checkpoints import FAMILIES
from bandrank_bench.families.memory import CANDIDATES, DOCUMENT, NUM_CANDIDATES, OURS, Growth
from bandrank_bench.families.results import FamilyResults
from bandrank_bench.output import bullets, table
from bandrank_bench.workloads import QUERY_TOKENS, WORKLOADS


def markdown(results: Sequence[FamilyResults]) -> str:
    """The page: aims, then a section for each family, memory, and the method."""
    aims = [aim for result in results for aim in judge_speed(result.family, result.tables)]
    growths = [growth for result in results for growth in result.memory]
    blocks = [
        "# Benchmarks at the sizes of other families",
        "How fast bandrank is, and how much memory it takes, at the sizes of published re-rankers. The checkpoints "
        "have their formats and sizes, but random weights: this compares speed and memory, not quality. Text in, "
        "scores out, tokenising included. Compare the ratios; the times hold for this machine only.\n\n"
        "Written by `python -m bandrank_bench families`, which `make bench` runs.",
        "## Aims",
        aims_table([*aims, *judge_memory(growths)]),
        *(block for result in results for block in _family(result)),
        *_memory(growths),
        "## How it is measured",
        _method(),
    ]
    return "\n\n".join(blocks) + "\n"


def _family(result: FamilyResults) -> list[str]:
    published = FAMILIES[result.family]
    kind = "tokens of its prompt" if published.prompted else "special tokens"
    around = f" Besides its texts, a pair has {result.around} {kind}." if result.around else ""
    blocks = [
        f"## {published.name}",
        f"As {published.id}: {published.size}." + around,
        bullets(result.machine),
    ]
    for workload, rows in result.tables.items():
        cells = [[*timing_cells(row, rows), number(speed_up(row, best_peer(rows, None)))] for row in rows]
        blocks += [f"{workload}:", table([*TIMING, "x best peer of any precision"], cells)]
    if result.left_out:
        blocks += ["Left out:", bullets(result.left_out)]
    if result.agreements:
        blocks += ["Scores:", agreement_table(result.agreements)]
    return blocks


def _memory(growths: Sequence[Growth]) -> list[str]:
    blocks = ["## Memory that a request adds"] if growths else []
    for kind in (DOCUMENT, CANDIDATES):
        of_kind = [growth for growth in growths if growth.kind == kind]
        for family in dict.fromkeys(growth.family for growth in of_kind):
            shown = [growth for growth in of_kind if growth.family == family]
            head = [f"{family}, {kind}: tokens", *(f"{point.tokens:,}" for point in shown[0].points)]
            rows = [
                [
                    f"**{growth.system}**" if growth.system == OURS else growth.system,
                    *(
                        f"{point.added_bytes / 1e6:,.0f} MB ({point.mb_per_thousand:.1f} per 1,000)"
                        for point in growth.points
                    ),
                ]
                for growth in shown
            ]
            blocks.append(table(head, rows))
    return blocks


def _method() -> str:
    shapes = " ".join(f"{name} is {WORKLOADS[name].title}." for name in ("W1", "W2"))
    return bullets(
        {
            "**Workloads**": f"{shapes} These lengths count a pair's special tokens as BERT has them. Here the texts "
            f"have as many tokens ({QUERY_TOKENS} and, in W2, 151), and what a family puts around them comes on top, "
            "in microseconds per token too.",
            "**Decoders**": "Every system gives a causal decoder its prompt. bandrank runs what precedes the "
            "candidates once for all of them.",
            "**Tokenizers**": "of each family's kind, trained on the benchmark's own prose. The table of word "
            "vectors is as small as they are, which saves memory and no time.",
            "**Peers**": "sentence-transformers batches by 32, its default. Plain transformers gets length-sorted "
            "batches of 16, with torch's own attention and no mask where there is no padding; of a decoder it computes "
            "only the logits of the last token, with padding on the left. infinity runs in another process with as "
            "many threads.",
            "**Scores**": "compared with `transformers` in float32, pair by pair, on a few passages; the run stops "
            f"if a float32 system differs by more than {FLOAT32_TOLERANCE:.0e}. The heads are drawn so that scores are "
            "far apart, which magnifies rounding.",
            "**Samples**": "Every round has new texts, and systems take turns in random order. A float32 matrix "
            "product is timed before and after each sample; the sample is clean, and counts, if both are within "
            f"{TOLERANCE} x of the fastest tenth of the family's run. Every sample, kept or not, is in the JSON lines "
            "file beside this page, a line for each family. Families may have been run on different days.",
            "**Ratios**": "of median microseconds per token. A precision is the one in which the matrix products "
            "really ran.",
            "**Memory**": "the peak resident memory of a process during a request, minus what was resident after a "
            "first small one, in bfloat16 if the processor has it. A document's tokens are those of its whole pair; "
            f"each of {NUM_CANDIDATES} candidates has 75, 150 or 300 tokens of its own.",
        }
    )
