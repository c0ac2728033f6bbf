"""lexical: gives a cross-encoder or a MixEncoder the evidence of shared words, with a gate fitted to judged groups.

The gate's nine numbers are fitted to the scores as they are served, in two convex problems: those that change the
ranking minimise the softmax cross-entropy of groups; then those that only shift a query's scores turn them into logits.
A training run can start from the result, and trains the gate too.

Groups should be lists as a search returns them: mined with `hard` as large as `depth`, `random = 0`, and `found_only`.
Hard negatives were chosen because they have the query's words; alone, they teach that shared words count against a
candidate. So do relevant candidates that the search did not find.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from bandrank.models.architectures import CrossEncoder, MixEncoder
from bandrank.models.batch import ScoreBatch
from bandrank.models.layers.lexical import EVIDENCE, QUERY_FEATURES, Lexical, LexicalConfig
from bandrank.models.loading import LoadedModel
from bandrank.models.ragged import Ragged
from bandrank_kernels.arrays import offsets
from bandrank_training.arguments import positive, share
from bandrank_training.collection import open_collection
from bandrank_training.dev import DevSet
from bandrank_training.errors import BadInput
from bandrank_training.frequencies import rarity
from bandrank_training.groups import check_areas
from bandrank_training.losses import LossRecipe, Scored, contrastive
from bandrank_training.models import check_out, rebuilt, write_model
from bandrank_training.placement import CPU, Placement
from bandrank_training.scoring import score_offline
from bandrank_training.start import load_start

RIDGE = 1e-3  # L2 penalty of the gate
STEPS = 100  # of L-BFGS
LEAST_WORTH = 0.1  # of a point of the scorer; with less, the evidence would drown the scorer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "model", metavar="MODEL", help="a cross-encoder or a MixEncoder: the folder of a run, or any that can be served"
    )
    parser.add_argument(
        "groups",
        metavar="GROUPS",
        type=Path,
        help="judged groups to fit the gate to, each a list as a search returns it",
    )
    parser.add_argument(
        "collection", metavar="COLLECTION", help="the collection in which to count document frequencies"
    )
    parser.add_argument("out", metavar="FOLDER", type=Path, help="the folder to write, not the model's own")
    parser.add_argument(
        "--without", nargs="*", default=[], metavar="DOMAIN", help="domains of a mixture to leave out of the fit"
    )
    parser.add_argument(
        "--strength",
        type=share,
        default=1.0,
        help="how much the evidence counts, as a share of what is best for the groups; less if another scorer that "
        "knows the shared words will add to the scores (default: 1)",
    )
    parser.add_argument("--most", type=positive, default=1000, help="the most groups to read (default: 1000)")
    Placement.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Writes the checkpoint, and prints the gate and its effect on the groups it was fitted to and on the others.

    Raises BadCheckpoint, BadCollection, BadGroups, and BadInput for a model that takes no lexical evidence, or for a
    folder with a model.
    """
    read = DevSet.read(args.groups)
    dev = replace(read, groups=read.groups[: args.most])
    check_areas("--without", args.without, {group.area for group in dev.groups})
    model = load_start(args.model)
    check_out(args.out, [model])
    texts = (text for _, text in open_collection(args.collection).documents())
    frequencies = rarity(texts, model.texts())
    asked = Asked.of(with_lexical(model, *frequencies), dev, Placement.of(args))
    fitted = [index for index, group in enumerate(dev.groups) if group.area not in args.without]
    if not fitted:
        raise BadInput(f"{args.groups}: no group is left to fit to")
    gate = fit(asked.some(fitted), args.strength)
    model = with_lexical(model, *frequencies)  # a new copy: the one that scored may have changed precision
    _lexical(model).gate.data.copy_(gate)
    write_model(model, args.out)
    before, after = (dev.by_area(asked.rows(each)) for each in (torch.zeros_like(gate), gate))
    for area in before:
        note = " (left out of the fit)" if area in args.without else ""
        print(f"{area}{note}: nDCG@10 {before[area]:.4f}, with lexical evidence {after[area]:.4f}")  # noqa: T201
    print(f"gate {gate.tolist()}; the checkpoint is in {args.out}")  # noqa: T201
    return 0


def with_lexical(model: LoadedModel, idf: Tensor, average_tokens: float) -> LoadedModel:
    """A copy of the model with lexical evidence, still closed off by a gate of zeros. Raises BadInput for a scorer that
    takes none.
    """
    if not isinstance(model.scorer, CrossEncoder | MixEncoder):
        raise BadInput(f"lexical evidence is for a cross_encoder or a mix_encoder, not a {model.scorer.architecture}")
    config = replace(model.scorer.config, lexical=LexicalConfig(average_tokens))
    weights = model.scorer.state_dict()
    weights |= {"lexical.idf": idf, "lexical.gate": torch.zeros(QUERY_FEATURES, EVIDENCE)}
    return replace(model, scorer=rebuilt(model.scorer, config, weights, source="the model with lexical evidence"))


@dataclass(frozen=True)
class Asked:
    """Groups as padded tensors. scored: the scores with a gate of zeros.  queries: features of the queries,
    (num_groups, 3).  evidence: (num_groups, width, 3).
    """

    scored: Scored
    queries: Tensor
    evidence: Tensor

    @classmethod
    def of(cls, model: LoadedModel, dev: DevSet, placement: Placement = CPU) -> "Asked":
        """The groups of a dev set, scored by the model as it is served."""
        texts, lexical = model.texts(), _lexical(model)
        width = max(len(group.candidates) for group in dev.groups)
        queries, evidence = [], []
        for group in dev.groups:
            query, _ = texts.query(group.query)
            pieces = texts.pieces([dev.texts[group.collection, name] for name in group.candidates])
            ids, _ = texts.candidates(pieces, query_tokens=len(query))
            candidates = Ragged.from_ids([ids])
            if model.scorer.precomputes:
                candidates = replace(candidates, words=lexical.words(candidates))
            batch = ScoreBatch(Ragged.from_token_ids([query]), candidates, offsets([len(ids)]))
            of_query, of_candidates = map(torch.from_numpy, lexical.evidence(batch))
            queries.append(of_query[0])
            evidence.append(_padded(of_candidates, width))
        scores = [torch.tensor(row) for row in dev.scores(score_offline(model, placement))]
        labels = [torch.tensor(group.labels) for group in dev.groups]
        mask = [torch.ones(len(row), dtype=torch.bool) for row in scores]

        def together(rows: Sequence[Tensor]) -> Tensor:
            return torch.stack([_padded(row, width) for row in rows])

        scored = Scored(together(scores), together(mask), together(labels), {})
        return cls(scored, torch.stack(queries), torch.stack(evidence))

    def some(self, groups: Sequence[int]) -> "Asked":
        """The groups with these indices."""
        chosen = torch.tensor(groups)
        scored = Scored(self.scored.scores[chosen], self.scored.mask[chosen], self.scored.labels[chosen], {})
        return Asked(scored, self.queries[chosen], self.evidence[chosen])

    def gated(self, gate: Tensor, worth: Tensor | float = 1.0) -> Scored:
        """The groups, scored with this gate. worth: the factor of the scorer's own scores."""
        evidence = ((self.queries @ gate)[:, None] * self.evidence).sum(2)
        return replace(self.scored, scores=worth * self.scored.scores + evidence)

    def rows(self, gate: Tensor) -> list[list[float]]:
        """The scores with this gate, by group."""
        scored = self.gated(gate)
        return [row[real].tolist() for row, real in zip(scored.scores, scored.mask, strict=True)]


def fit(asked: Asked, strength: float = 1.0) -> Tensor:
    """Fits the gate, (3, 3), to the groups. strength: the factor of the part that ranks.

    Overconfident scores would leave no weight for the evidence, so the worth of a point of score is fitted too.
    """

    def misranked(parameters: Tensor) -> Tensor:
        gate, worth = parameters[:, :-1], 1 + parameters[0, -1]
        gated = asked.gated(_with_constants(gate), worth=worth)
        return contrastive(gated, LossRecipe("contrastive"))

    found = _minimise(misranked, 3)
    ranking = strength * found[:, :-1] / (1 + found[0, -1]).clamp_min(LEAST_WORTH)
    ranked = asked.gated(_with_constants(ranking))
    relevant = ranked.labels[ranked.mask] > 0
    weights = torch.where(relevant, 0.5 / relevant.sum(), 0.5 / (~relevant).sum())
    owner = torch.arange(len(asked.queries))[:, None].expand_as(ranked.mask)[ranked.mask]

    def miscalibrated(constants: Tensor) -> Tensor:
        logits = ranked.scores[ranked.mask] + (asked.queries @ constants)[owner, 0]
        return binary_cross_entropy_with_logits(logits, relevant.float(), weights, reduction="sum")

    return torch.cat([ranking, _minimise(miscalibrated, 1)], 1)


def _lexical(model: LoadedModel) -> Lexical:
    """The part of a model that `with_lexical` added."""
    assert isinstance(model.scorer, CrossEncoder | MixEncoder), "checked by with_lexical. This is a bug."
    assert model.scorer.lexical is not None, "added by with_lexical. This is a bug."
    return model.scorer.lexical


def _minimise(loss: Callable[[Tensor], Tensor], columns: int) -> Tensor:
    """The minimum, (3, columns), of a convex loss plus a small L2 penalty."""
    found = torch.zeros(QUERY_FEATURES, columns, requires_grad=True)
    optimiser = torch.optim.LBFGS([found], max_iter=STEPS, line_search_fn="strong_wolfe")

    def step() -> Tensor:
        optimiser.zero_grad()
        value = loss(found) + RIDGE * found.square().sum()
        value.backward()  # type: ignore[no-untyped-call]  # torch's
        return value

    optimiser.step(step)  # type: ignore[no-untyped-call]  # torch's
    return found.detach()


def _with_constants(ranking: Tensor) -> Tensor:
    """Pads a gate so that it does not shift a query's scores."""
    return torch.cat([ranking, torch.zeros(QUERY_FEATURES, EVIDENCE - ranking.shape[1])], 1)


def _padded(rows: Tensor, width: int) -> Tensor:
    """Pads the rows with zeros up to `width`."""
    return torch.cat([rows, rows.new_zeros(width - len(rows), *rows.shape[1:])])
