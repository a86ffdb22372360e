"""Samples from text files: one text a line, through the model's tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.feeds import InputSpec
from winml_dag.stages.samples.fit import fit
from winml_dag.stages.samples.processor import Processor
from winml_dag.stages.samples.samples import Feed, Samples


def text_samples(files: Sequence[Path], inputs: Sequence[InputSpec], processor: Processor) -> Samples:
    """Every line that is not blank, files in the order given.

    Raises:
        StageError: for what is not text in UTF-8, and when the tokenizer does not make all inputs.
    """

    def read(numbers: Sequence[int]) -> Iterator[Feed]:
        wanted = iter(numbers)
        number = next(wanted, None)
        for at, text in enumerate(_texts(files)):
            if number is None:
                return
            if at == number:
                yield encoded(processor, inputs, text)
                number = next(wanted, None)

    return Samples("text", range(sum(1 for _ in _texts(files))), read)


def encoded(processor: Processor, inputs: Sequence[InputSpec], text: str) -> Feed:
    """*text* through the tokenizer. Raises StageError when that does not make all *inputs*."""
    arrays = processor.of_text(text)
    if missing := sorted({spec.name for spec in inputs} - arrays.keys()):
        raise StageError(
            f"The tokenizer does not make the model's input {', '.join(missing)}.",
            advice="Give arrays for all inputs (.npz).",
        )
    return fit(arrays, inputs, f"the text {text[:40]!r}")


def _texts(files: Sequence[Path]) -> Iterator[str]:
    for file in files:
        try:
            with file.open(encoding="utf-8-sig") as lines:
                yield from (text for line in lines if (text := line.strip()))
        except UnicodeDecodeError as error:
            raise StageError(f"The data {file.name} is not text in UTF-8: {explanation(error)}.") from error
