"""Cross-encoders whose encoder reads query and candidate as one text: with a classifier, or with a chain of
sentence-transformers modules behind the encoder, like Ettin's re-rankers.
"""

from pathlib import Path
from typing import Literal

from bandrank.models.architectures.sequence_cross_encoder import SequenceCrossEncoder, SequenceCrossEncoderConfig
from bandrank.models.checkpoint import read_json, read_object
from bandrank.models.hf.dense import activation
from bandrank.models.hf.files import Weights, read_weights
from bandrank.models.hf.limits import most_tokens
from bandrank.models.hf.model import Model
from bandrank.models.hf.modules import require_on_vector
from bandrank.models.hf.pooling import read_poolings
from bandrank.models.hf.prompts import require_no_prompt
from bandrank.models.scorer import Scorer

CHAIN = ["Transformer", "Pooling", "Dense", "LayerNorm", "Dense"]
CHAIN_EPS = 1e-5  # of sentence-transformers' LayerNorm, which saves none


def read(model: Model) -> Scorer:
    """The cross-encoder of a folder with a classifier.

    Raises BadCheckpoint, ValueError, and KeyError for a missing tensor.
    """
    pooling = model.settings.get("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise model.refuse(f"classifier_pooling {pooling!r} is not supported, only cls or mean")
    return build(model, pooling, model.head_weights)


def read_chain(model: Model) -> Scorer:
    """The cross-encoder of a folder whose modules are `CHAIN`: [CLS], a dense layer with GELU, a norm, and a dense
    layer to the score.

    Raises BadCheckpoint, and KeyError for a missing tensor.
    """
    _, pooling, dense, norm, classifier = (
        model.folder / each["path"] for each in read_json(model.folder / "modules.json")
    )
    _check_chain(model, pooling, dense, classifier)
    weights = {
        f"{name}.{part}": tensor
        for name, path in (("dense", dense), ("norm", norm), ("classifier", classifier))
        for part, tensor in _parts(read_weights(path)).items()
    }
    weights.setdefault("dense.bias", weights["dense.weight"].new_zeros(len(weights["dense.weight"])))
    weights.setdefault("classifier.bias", weights["classifier.weight"].new_zeros(1))
    return build(model, "cls", {f"head.{name}": tensor.float() for name, tensor in weights.items()})


def _check_chain(model: Model, pooling: Path, dense: Path, classifier: Path) -> None:
    """Raises BadCheckpoint or ValueError if the modules compute anything but the head of `SequenceCrossEncoder`."""
    of_pooling, of_dense, of_classifier = (read_object(path / "config.json") for path in (pooling, dense, classifier))
    if (modes := read_poolings(of_pooling)) != ("cls",):
        raise model.refuse(f"a re-ranker's modules with pooling {', '.join(modes)} are not supported, only cls")
    if (found := activation(of_dense)) != "GELU":
        raise model.refuse(f"the first Dense module has activation {found}, only GELU is supported")
    if (found := activation(of_classifier)) not in ("Identity", "Sigmoid"):
        raise model.refuse(f"the last Dense module has activation {found}, only Identity or Sigmoid is supported")
    if (outputs := of_classifier.get("out_features")) != 1:
        raise model.refuse(f"a re-ranker has one output, the last Dense module has {outputs}")
    require_on_vector(dense)
    require_on_vector(classifier, "scores")
    if of_dense.get("use_residual") or of_classifier.get("use_residual"):
        raise model.refuse("Dense modules with a residual are not supported")
    if model.encoder.layer_norm_eps != CHAIN_EPS:
        raise model.refuse(f"an encoder with norm_eps {model.encoder.layer_norm_eps} beside a LayerNorm of {CHAIN_EPS}")


def _parts(weights: Weights) -> Weights:
    """The weight and bias of a module with one layer, saved as `linear.weight` or `norm.weight`."""
    return {name.rsplit(".", 1)[-1]: tensor for name, tensor in weights.items()}


def build(model: Model, pooling: Literal["cls", "late", "mean"], head: Weights) -> Scorer:
    """The cross-encoder with this pooling and head (`Model.head_weights`). Raises BadCheckpoint and ValueError."""
    require_no_prompt(model)
    max_tokens = most_tokens(model, model.encoder.max_positions)
    ids, frame = model.ids(), model.frame
    config = SequenceCrossEncoderConfig(
        **ids,
        between=frame.between if frame else (ids["sep_id"],) * model.query_separators,
        encoder=model.encoder,
        pooling=pooling,
        max_tokens=max_tokens,
        max_query_tokens=min(256, max_tokens // 2),
    )
    return model.assemble(SequenceCrossEncoder, config, head)
