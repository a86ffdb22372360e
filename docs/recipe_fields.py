"""What each field of a recipe means, in words: the part of ``docs/reference/recipe.md`` that the schema cannot tell.

Every field of the schema has an entry here and every entry has a field; ``docs/check.py`` fails otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

OURS = "ours"
REFUSED = "refused"
NO_EFFECT = "no effect"


@dataclass(frozen=True)
class Meaning:
    """``mark``: ours (winml-cli has no such field), refused (not available yet), no effect (read and checked only)."""

    text: str
    mark: str = ""


def _ours(text: str) -> Meaning:
    return Meaning(text, OURS)


def _refused(text: str) -> Meaning:
    return Meaning(text, REFUSED)


def _unused(text: str) -> Meaning:
    return Meaning(text, NO_EFFECT)


# The nested form of compile, and what a component of a composite model says otherwise: the same fields as at the top.
SAME_AS = {
    "compile.ep_config": "compile",
    "compile.quant_config": "quant",
    "components.export": "export",
    "components.quant": "quant",
    "components.compile": "compile",
    "components.validate": "validate",
}

SECTIONS = {
    "": "The keys at the top of a recipe.",
    "loader": "Where the PyTorch model comes from. Not read when the model is ONNX already.",
    "loader.random_weights": (
        "Weights made from a seed instead of loaded; `random_weights: true` means all defaults. A model that the "
        "recipe names is not read then, and the result does not go by its name; `-m` takes the place of random "
        "weights. Needs `loader.model_type`."
    ),
    "export": (
        "How the PyTorch model becomes ONNX. Of a model that is ONNX already, `batch_size`, `shape_config` and "
        "`input_tensors` are the sizes of its [open dimensions](../how-to/models-of-others.md#open-dimensions). "
        "Left out: the defaults. `export: null`: the model is ONNX already, and "
        "anything else is refused."
    ),
    "export.input_tensors": "One entry for each input of the exported model.",
    "export.output_tensors": "One entry for each output of the exported model.",
    "export.compatibility": "",
    "quant": (
        "How floats become integers or float16. Left out or null: no quantization, unless `precision` asks for some. "
        "`precision` wins over `quant.mode`, `quant.rtn_bits`, `quant.rtn_float_type` and the widths of "
        "`quant.weight_type` and `quant.activation_type`; see [Precisions](precisions.md). A field that the mode does "
        "not read gives a note, unless it has winml-cli's default."
    ),
    "quant.node_overrides": (
        "Ours. Types of single nodes, static only, by name or pattern (`*`, `?`); a name beats a pattern. See "
        "[Mixed precision](precisions.md#mixed-precision)."
    ),
    "compile": (
        "What the execution provider makes of the model ahead of time. Left out: compile runs for an `ep` or "
        "`device` that compiles, named in the recipe or on the command line. Null: it does not run."
    ),
    "compile.ep_device": "Another way to name provider and device, as winml-cli writes it.",
    "compile.ep_config": (
        "The nested form of `compile`; `provider` is `compile.execution_provider`. The same field in both forms must "
        "have the same value."
    ),
    "validate": "Ours. The result is run and held against the float model; see [validate](stages.md#validate).",
    "perf": (
        "Ours. How `winml-dag perf` measures the result; no build does. See "
        "[Measure the speed](../how-to/measure-speed.md)."
    ),
    "components": (
        "Ours. What is otherwise for one component of a composite model (`encoder`, `decoder`, `image-encoder`, "
        "`text-encoder`), by its name; see [Composite models](../how-to/composite-models.md). Of a section, the fields "
        "that are written here take the place of those above."
    ),
    "stages": (
        "Ours. Stages of your own, by name; see [Stages of your own](../how-to/stages-of-your-own.md). An entry has "
        "one of `command`, `run` and `uses`; one with only `inputs`, under the name of one of our stages, says where "
        "that stage reads from."
    ),
    "eval": (
        "How `winml-dag eval` evaluates the result; no build does. See "
        "[Measure the accuracy](../how-to/measure-accuracy.md). Fields that are marked as refused may have winml-cli's "
        "default, or be left out."
    ),
    "eval.dataset": "Labelled data, or in the mode compare any data.",
}

FIELDS: dict[str, Meaning] = {
    "model": _ours("Hub id, model folder or `.onnx` file. `-m` and `--onnx` win over it."),
    "ep": _ours("Execution provider by name or [alias](execution-providers.md)."),
    "device": _ours("With `auto` and no `ep`: the CPU. With an `ep`: the first device that it drives."),
    "precision": _ours("One of the [precisions](precisions.md). Left out: the `quant` section decides."),
    "output_dir": _ours("Output folder, relative to the recipe. `-o` wins over it."),
    "optim": Meaning("Graph optimizations by [capability](#capabilities)."),
    "auto": Meaning("Search for capabilities of optimize that the target needs: [autoconf](../how-to/autoconf.md)."),
    "max_optim_iterations": _ours("How many optimizations may follow the first one in that search."),
    "allow_unsupported_nodes": _ours("Build also a model that analyze finds operators in which the target cannot run."),
    "skip_optimize": Meaning("Leave the optimize stage out."),
    "loader.task": Meaning("What the model is for, such as `fill-mask`; read from `config.json` when left out."),
    "loader.model_class": Meaning("A class of transformers in place of the one that the task stands for."),
    "loader.model_type": Meaning("Architecture in transformers' words, such as `bert`."),
    "loader.module_path": Meaning(
        "Build this one module of the model, such as `bert.encoder.layer.0`: "
        "[one module](../how-to/build-one-module.md). Then `model_class` may be the class of the module."
    ),
    "loader.user_script": Meaning(
        "A Python file, relative to the recipe, with the class or function that `model_class` names: "
        "[a model of your own](../how-to/export-a-model.md#a-model-of-your-own)."
    ),
    "loader.trust_remote_code": Meaning("Run Python code that comes with the model. The code is part of the key."),
    "loader.path": _ours("Model folder, relative to the recipe; wins over `model`."),
    "loader.revision": _ours("Branch, tag or commit of a model on the hub; `main` when left out."),
    "loader.random_weights": _ours("Make the weights up."),
    "loader.random_weights.seed": _ours("Other seed, other weights."),
    "loader.random_weights.config": _ours("Fields of the architecture's configuration, such as `hidden_size`."),
    "export.opset_version": Meaning("21 when left out (17 in winml-cli). The dynamo exporter begins at 18."),
    "export.batch_size": Meaning("First dimension of all inputs; of an ONNX model, of those that leave it open."),
    "export.input_tensors": Meaning("Inputs to export; those that the architecture usually has when left out."),
    "export.input_tensors.name": Meaning("Name of a parameter of the model's `forward`."),
    "export.input_tensors.dtype": Meaning("Type; that of the architecture's usual input when left out."),
    "export.input_tensors.shape": Meaning("Whole numbers; a text names a dynamic axis."),
    "export.input_tensors.value_range": Meaning("Range of random data, its end not included."),
    "export.output_tensors": Meaning("Outputs to export; those that the task is about when left out."),
    "export.output_tensors.name": Meaning("Name of an output of the PyTorch model."),
    "export.module_arguments": _ours(
        "What the module of `loader.module_path` is called with besides tensors: `{input_dimensions: [8, 8]}`."
    ),
    "export.dynamic_axes": Meaning("Name of a dynamic axis by tensor and axis number: `{input_ids: {0: batch}}`."),
    "export.export_params": Meaning("`false` fails: a model without weights can be neither checked nor compiled."),
    "export.do_constant_folding": Meaning("Let the exporter compute what depends on constants only."),
    "export.verbose": _unused("The exporter's words are in the log of the stage if it fails."),
    "export.dynamo": Meaning(
        "`true`: dynamo, `false`: TorchScript. Left out: TorchScript, and dynamo for decoder language models "
        "(`false` in winml-cli)."
    ),
    "export.clean_onnx": Meaning(
        "Leave the tags of `enable_hierarchy_tags` out of the model itself. Doc strings and the exporter's notes are "
        "never in it."
    ),
    "export.enable_hierarchy_tags": Meaning(
        "Write the module of each node into the model and into `export_htp_metadata.json`."
    ),
    "export.hierarchy_tag_format": Meaning("How a module is written there."),
    "export.shape_config": _ours(
        "Sizes by the name of the dimension: `{sequence_length: 64}`, `{height: 384, width: 384}`. They come before "
        "the sizes in `input_tensors`; an axis that has a name there stays open. A dimension that no input has "
        "changes nothing. Of an ONNX model, sizes by the names that it has for its dimensions; any other is an error."
    ),
    "export.compatibility": Meaning("See below."),
    "export.compatibility.transformers_attention": Meaning("Attention is always exported as `eager`."),
    "quant.mode": Meaning("static: QDQ with calibration. dynamic: integer weights only. rtn: weights in blocks. "
                          "`qdq` is read as static."),
    "quant.samples": Meaning("Random samples, or the most that are taken of your data. "
                             "`calibration_samples` is another name."),
    "quant.calibration_method": Meaning("How a range is found from the values seen."),
    "quant.calibration_data": _ours("Arrays, texts, images or tables: a file, or a folder of them, relative to the "
                                    "recipe. See [Quantize with your data](../how-to/quantize-with-your-data.md)."),
    "quant.task": Meaning("What the data set is for: `question-answering` has the columns `question` and `context`. "
                          "The model's task when left out."),
    "quant.model_id": Meaning("Whose tokenizer and image processor to use: a folder, relative to the recipe, or a hub "
                              "id; the model's own when left out."),
    "quant.dataset_name": Meaning("A data set: a folder, relative to the recipe, or a hub id."),
    "quant.dataset_subset": _ours("One of its subsets; its default one when left out."),
    "quant.dataset_split": _ours("One of its splits."),
    "quant.columns_mapping": _ours("Of tables: the column for each input of the model, or for `text`, `text_pair` and "
                                   "`image`; columns of these names when left out."),
    "quant.model_type": Meaning("Static: `qwen3` has rules of its own where the section leaves types open (symmetric "
                                "int8 weights, 16-bit activations, GroupQueryAttention in float); no other has."),
    "quant.weight_type": Meaning("Static and dynamic: type of weights. Left out: by the "
                                 "[table of providers](precisions.md#types-and-their-sources)."),
    "quant.activation_type": Meaning("Static: type of activations. Left out: by the same table."),
    "quant.per_channel": Meaning("A scale for each channel of a weight. Left out: by the same table (false in "
                                 "winml-cli)."),
    "quant.symmetric": Meaning("Zero point in the middle, for weights and activations. Left out: by the same table."),
    "quant.weight_symmetric": Meaning("The same for weights only; `quant.symmetric` when left out."),
    "quant.activation_symmetric": Meaning("The same for activations only; `quant.symmetric` when left out."),
    "quant.op_types_to_quantize": Meaning("Operators to quantize, by name or pattern (`*`, `?`). Left out: all that "
                                          "there are rules for; for static quantization on the CPU [those that "
                                          "pay off](precisions.md#what-the-cpu-quantizes). Of w4a16, for the 4-bit "
                                          "weights only."),
    "quant.op_types_to_exclude": _ours("Operators that stay in float, by name or pattern."),
    "quant.nodes_to_exclude": Meaning("Nodes that stay in float, by name or pattern; each must match."),
    "quant.node_overrides": _ours("Types of single nodes; see [below](#quantnode_overrides)."),
    "quant.node_overrides.weight_type": Meaning("Type of the weight of these nodes."),
    "quant.node_overrides.activation_type": Meaning("Type of all activations that these nodes read and make."),
    "quant.equalize": _ours("Static with 8-bit activations: spare them the few huge values around normalizations. On "
                            "when left out."),
    "quant.rtn_bits": Meaning("rtn: bits of a weight."),
    "quant.rtn_block_size": Meaning("rtn: weights that share a scale."),
    "quant.rtn_symmetric": Meaning("rtn: no zero points."),
    "quant.rtn_accuracy_level": Meaning("rtn: `accuracy_level` of MatMulNBits."),
    "quant.rtn_float_type": _ours("rtn: type of what has no integer weights. `float16` (w4a16) is made in a second "
                                  "step, with the fields of fp16."),
    "quant.reduce_range": Meaning("Static and dynamic: 7 bits of weights, for processors that overflow with 8."),
    "quant.fp16_keep_io_types": Meaning("fp16: inputs and outputs stay in float32."),
    "quant.fp16_op_block_list": Meaning("fp16: operators that stay in float32, by name or pattern, besides those "
                                        "without a float16 form."),
    "quant.save_calibration": Meaning("Show the ranges in the output folder, as `calibration_ranges.json`."),
    "quant.distribution": Meaning("Of random calibration data. Beside ranges from a file: theirs, or it is refused."),
    "quant.seed": Meaning("Random data: 0 when left out. Your data: which samples are taken; the first ones when left "
                          "out. Beside ranges from a file: theirs, or it is refused."),
    "quant.calibration_load_path": Meaning("Ranges from a file, relative to the recipe; nothing is calibrated. "
                                           "`load_path` is another name."),
    "quant.calibration_save_path": Meaning("A file in the recipe's folder that the ranges are put to as well."),
    "compile.execution_provider": Meaning("Name or alias; the key `ep` at the top wins over it."),
    "compile.provider_options": Meaning("Names and values for the provider; both are texts, so put numbers in quotes. "
                                        "See [QNN's](execution-providers.md#options-of-qnn)."),
    "compile.provider_option_file_keys": Meaning("Options whose value is a file: its content becomes part of the key."),
    "compile.enable_ep_context": Meaning("`false`: do not compile."),
    "compile.embed_context": Meaning("`true`: the binary is inside of the model instead of in a file beside it."),
    "compile.compiler": Meaning("`ort`: onnxruntime's compile API. `ort_session`: a session that keeps its compiled "
                                "model. `qairt`: [the tools of Qualcomm's SDK](../how-to/compile-for-qnn.md#with-the-"
                                "qairt-sdk)."),
    "compile.qnn_sdk_root": Meaning("The folder of that SDK, relative to the recipe. Where it lies is in no key; what "
                                    "it is, is."),
    "compile.soc_model": _ours("The chip whose NPU the model is for: its number or its name, such as `60` or "
                               "`Snapdragon X Elite`. See [chips](execution-providers.md#chips)."),
    "compile.htp_arch": _ours("Version of the NPU's architecture. It follows from the chip: one of the two is enough."),
    "compile.htp_optimization_level": _ours("How long QNN prepares the graph, so that it runs faster: 3 when left out. "
                                            "See [what the levels cost](../how-to/compile-for-qnn.md#the-chip-and-the-"
                                            "optimization-level)."),
    "compile.require_full_offload": _ours("`true`: fail when an operator is left to the CPU; conversions of inputs and "
                                          "outputs do not count."),
    "compile.device": Meaning("Device, when the key `device` at the top does not say."),
    "compile.ep_device": Meaning("See below."),
    "compile.ep_device.ep": Meaning("Execution provider."),
    "compile.ep_device.device": Meaning("Device."),
    "compile.ep_device.source": _unused("Where a provider comes from."),
    "compile.validate": Meaning("`false`: leave the validate stage out."),
    "compile.quantize": _unused("Of old files. `true` is refused where nothing is quantized, and `false` beside "
                                "`quant_config`: `quant` and `quant_config` took its place."),
    "compile.verbose": _unused("The compiler's words are in the log of the stage if it fails."),
    "compile.quant_config": _ours("A `quant` section for this target; refused beside `quant`."),
    "compile.ep_config": Meaning("See below."),
    "components.precision": _ours("Of this component, in place of the recipe's."),
    "components.export": _ours("Fields of `export`, such as input tensors, which differ from component to component."),
    "components.optim": _ours("Capabilities that are on or off for this component."),
    "components.quant": _ours("Fields of `quant`; null: this component is not quantized."),
    "components.compile": _ours("Fields of `compile`; null: this component is not compiled."),
    "components.validate": _ours("Fields of `validate`."),
    "components.skip_optimize": _ours("Leave optimize out for this component."),
    "stages.command": _ours("A program and its arguments, with `{inputs.name}`, `{outputs.name}`, `{config.name}`."),
    "stages.run": _ours("A Python function in place of a command: `package.module:function`."),
    "stages.uses": _ours("A stage that an installed package brings, by name."),
    "stages.inputs": _ours("By name: a file, a folder (with `/` at its end), or `stage.output`."),
    "stages.outputs": _ours("By name: the file or folder (with `/`) that it puts out, inside the recipe's folder."),
    "stages.env": _ours("Environment variables; besides these a command gets a few fixed ones only."),
    "stages.config": _ours("Values for `{config.name}`, for the function's third argument, or for the plug-in."),
    "stages.timeout": _ours("Seconds after which it is ended; an hour when left out. No part of the key."),
    "validate.enabled": _ours("`false`: leave the validate stage out."),
    "validate.min_cosine": _ours("Bound for the cosine of each output; that of the "
                                 "[precision](precisions.md#bounds-of-validate) when left out."),
    "validate.min_sqnr_db": _ours("Bound for the signal to quantization noise of each output, in dB; not checked when "
                                  "left out."),
    "validate.max_abs_error": _ours("Bound for the largest error of a single value; not checked when left out."),
    "validate.min_top1_agreement": _ours("Bound for the part of decisions with the same best class, of outputs that "
                                         "are scores of classes; not checked when left out."),
    "validate.input_data": _ours("What to compare on: arrays, texts, images or tables, as `quant.calibration_data` has "
                                 "them, relative to the recipe. What calibration leaves of that, or random inputs, "
                                 "when left out. See [validate](../how-to/validate.md)."),
    "validate.samples": _ours("Inputs to compare on; of `validate.input_data`, all when left out."),
    "validate.seed": _ours("Of random inputs."),
    "perf.warmup": _ours("Inferences that are run before, and not counted."),
    "perf.iterations": _ours("Inferences that are measured: 100 when left out, unless `perf.duration` says otherwise."),
    "perf.duration": _ours("Seconds after which measuring ends; not together with `perf.iterations`."),
    "perf.threads": _ours("Threads of one operator; as many as onnxruntime thinks fit when left out."),
    "perf.batch_size": _ours("Samples in one inference. A model that takes any number gets so many, one when left out; "
                            "of a model with fixed inputs it says that their first axis is a batch of that size."),
    "perf.sizes": _ours("For random inputs, sizes of axes that the model leaves open, by the names that it has for "
                        "them: `{sequence_length: 128}`. 1 when left out."),
    "perf.seed": _ours("Of random inputs."),
    "perf.input_data": _ours("A .npz file with inputs: arrays by the names of inputs, whose first axis counts the "
                             "samples. Random ones when left out."),
    "perf.loads": _ours("Processes that load the model, each for the first time; their median is told."),
    "eval.runtime": _refused("`pytorch`. The reference is a float ONNX model."),
    "eval.mode": Meaning("`onnx`: the metrics of a task. `compare`: every output beside the reference's."),
    "eval.model_id": Meaning("The model folder or hub id whose tokenizer, image processor and labels are used. Left "
                             "out: those of the model that was built."),
    "eval.model_path": _refused("The model is what the recipe builds."),
    "eval.input_data": Meaning("For `compare`: a file or folder of inputs, such as a .npz. Random ones when left out."),
    "eval.reference_path": Meaning("The float ONNX model beside it. Left out: what the build left of it."),
    "eval.reference_device": _refused("Any but `cpu`."),
    "eval.reference_ep": _refused("Any but `cpu`."),
    "eval.task": Meaning("A [task](../how-to/measure-accuracy.md#tasks). Left out: what the model was built for."),
    "eval.device": Meaning("Where the model runs. `auto`: what it was built for."),
    "eval.precision": _refused("It is that of the build."),
    "eval.ep": Meaning("Where the model runs. Left out: what it was built for."),
    "eval.quant": _refused("A model is built first, then evaluated as it is."),
    "eval.optimize": _refused("As `eval.quant`."),
    "eval.analyze": _refused("As `eval.quant`."),
    "eval.max_optim_iterations": _refused("As `eval.quant`."),
    "eval.shape_config": _refused("As `eval.quant`."),
    "eval.export_overrides": _refused("As `eval.quant`."),
    "eval.dataset": Meaning("See below."),
    "eval.batch_size": _ours("Samples that go in at once, where the model's batch axis is free."),
    "eval.pooling": _ours("How the embedding of a text is made of its tokens': their mean, or that of the first one "
                          "(`cls`). Left out: the model's own embedding of the text if it has one, else the mean."),
    "eval.output_path": _refused("Give the folder as `-o`."),
    "eval.skip_build": _refused("As `eval.quant`."),
    "eval.use_cache": _refused("As `eval.quant`."),
    "eval.rebuild": _refused("As `eval.quant`."),
    "eval.trust_remote_code": _refused("As `eval.quant`."),
    "eval.allow_unsupported_nodes": _refused("As `eval.quant`."),
    "eval.dataset.path": Meaning("A file, a folder, or the hub id of a data set."),
    "eval.dataset.name": Meaning("One of its subsets."),
    "eval.dataset.split": Meaning("One of its splits. A folder that is not divided into splits is used whole, unless "
                                  "another is asked for."),
    "eval.dataset.samples": Meaning("How many samples at most."),
    "eval.dataset.shuffle": Meaning("A choice of the samples; `false`: the first ones."),
    "eval.dataset.seed": Meaning("Of that choice, or of random inputs."),
    "eval.dataset.columns_mapping": Meaning("Which column is what, where columns are called otherwise, such as "
                                            "`{text: sentence}`."),
    "eval.dataset.label_mapping": Meaning("The model's class by the label in the data. Left out: by the names in the "
                                          "model's `config.json`, or by number."),
    "eval.dataset.label_mapping_file": Meaning("The same in a JSON file."),
    "eval.dataset.streaming": _refused("Files are read from front to back in any case."),
    "eval.dataset.revision": Meaning("A branch, tag or commit of a data set on the hub."),
    "eval.dataset.build_script": _refused("Scripts of data sets are not run."),
}  # fmt: skip
