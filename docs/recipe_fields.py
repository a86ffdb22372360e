"""What each field of a recipe means: the part of ``docs/reference/recipe.md`` that the schema does not contain.

Every field of the schema has an entry here and every entry has a field; ``docs/check.py`` fails otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

ADDED = "added"
REJECTED = "rejected"
NO_EFFECT = "no effect"


@dataclass(frozen=True)
class Meaning:
    """``mark``: added (winml-cli has no such field), rejected (not available yet), no effect (validated only)."""

    text: str
    mark: str = ""


def _added(text: str) -> Meaning:
    return Meaning(text, ADDED)


def _rejected(text: str) -> Meaning:
    return Meaning(text, REJECTED)


def _unused(text: str) -> Meaning:
    return Meaning(text, NO_EFFECT)


# The nested form of compile, and overrides for a component of a composite model: the same fields as at the top.
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
    "loader": "Where the PyTorch model comes from. Ignored for an ONNX model.",
    "loader.random_weights": (
        "Weights from a seed instead of a checkpoint; `random_weights: true` means all defaults. A model named in the "
        "recipe is then not read; `-m` replaces random weights. Needs `loader.model_type`."
    ),
    "export": (
        "How the PyTorch model becomes ONNX. For an ONNX model, `batch_size`, `shape_config` and `input_tensors` set "
        "its [open dimensions](../how-to/existing-onnx-models.md#open-dimensions). `export: null`: the model is ONNX; "
        "any other model is an error."
    ),
    "export.input_tensors": "One entry per input of the exported model.",
    "export.output_tensors": "One entry per output of the exported model.",
    "export.compatibility": "",
    "quant": (
        "How floats become integers or float16. Missing or null: no quantization, unless `precision` asks for it. "
        "`precision` wins over `quant.mode`, `quant.rtn_bits`, `quant.rtn_float_type` and the widths of "
        "`quant.weight_type` and `quant.activation_type`; see [Precisions](precisions.md). A field that the mode does "
        "not read gives a note, unless it has winml-cli's default."
    ),
    "quant.node_overrides": (
        "Added. Types of single nodes, static only, by name or pattern (`*`, `?`); a name wins over a pattern. See "
        "[Mixed precision](precisions.md#mixed-precision)."
    ),
    "compile": (
        "Ahead-of-time compilation by the execution provider. Missing: compile runs for an `ep` or `device` that "
        "compiles, named in the recipe or on the command line. Null: it does not run."
    ),
    "compile.ep_device": "Another way to name provider and device, as winml-cli writes it.",
    "compile.ep_config": (
        "The nested form of `compile`; `provider` is `compile.execution_provider`. A field given in both forms must "
        "have the same value."
    ),
    "validate": "Added. The result is run and compared with the float model; see [validate](stages.md#validate).",
    "perf": (
        "Added. Settings of `winml-dag perf` and of `measure: [perf]` in sweeps. See "
        "[Measure latency](../how-to/measure-speed.md)."
    ),
    "components": (
        "Added. Overrides for a component of a composite model (`encoder`, `decoder`, `image-encoder`, "
        "`text-encoder`), by its name; see [Composite models](../how-to/components-and-modules.md). Sections are "
        "merged field by field."
    ),
    "stages": (
        "Added. [Custom stages](../how-to/custom-stages.md), by name. An entry has one of `command`, `run` and `uses`; "
        "one with only `inputs`, under the name of a built-in stage, changes where that stage reads from."
    ),
    "eval": (
        "Settings of `winml-dag eval` and of `measure: [eval]` in sweeps. See "
        "[Measure accuracy](../how-to/measure-accuracy.md). Rejected fields may have winml-cli's default."
    ),
    "eval.dataset": "Labelled data; in compare mode any data.",
}

FIELDS: dict[str, Meaning] = {
    "model": _added("Hub id, model folder or `.onnx` file. `-m` and `--onnx` win."),
    "ep": _added("Execution provider by name or [alias](execution-providers.md)."),
    "device": _added("`auto` without `ep`: the CPU. With `ep`: its first device."),
    "precision": _added("One of the [precisions](precisions.md). Default: the `quant` section decides."),
    "output_dir": _added("Output folder, relative to the recipe. `-o` wins."),
    "optim": Meaning("Graph optimizations by [capability](#capabilities)."),
    "auto": Meaning("Search for optimizations that the target needs: [autoconf](../how-to/optimize.md)."),
    "max_optim_iterations": _added("Rounds of that search after the first optimization."),
    "allow_unsupported_nodes": _added("Build even if the target cannot run some operators."),
    "skip_optimize": Meaning("Skip the optimize stage."),
    "loader.task": Meaning("The task, such as `fill-mask`. Default: from `config.json`."),
    "loader.model_class": Meaning("A transformers class, instead of the one for the task."),
    "loader.model_type": Meaning("Architecture as transformers calls it, such as `bert`."),
    "loader.module_path": Meaning(
        "Build only this module, such as `bert.encoder.layer.0`: "
        "[single modules](../how-to/components-and-modules.md#build-single-modules). `model_class` may then be the "
        "class of the module."
    ),
    "loader.user_script": Meaning(
        "A Python file, relative to the recipe, with the class or function that `model_class` names: "
        "[a model of your own](../how-to/export-a-model.md#a-model-of-your-own)."
    ),
    "loader.trust_remote_code": Meaning("Run Python code that comes with the model. The code is in the key."),
    "loader.path": _added("Model folder, relative to the recipe; wins over `model`."),
    "loader.revision": _added("Branch, tag or commit of a hub model. Default: `main`."),
    "loader.random_weights": _added("Use random weights."),
    "loader.random_weights.seed": _added("Seed of the weights."),
    "loader.random_weights.config": _added("Fields of the model config, such as `hidden_size`."),
    "export.opset_version": Meaning("Default: 21 (17 in winml-cli). The dynamo exporter starts at 18."),
    "export.batch_size": Meaning("First dimension of all inputs; for an ONNX model, of open ones."),
    "export.input_tensors": Meaning("Inputs to export. Default: the usual ones of the architecture."),
    "export.input_tensors.name": Meaning("Name of a parameter of the model's `forward`."),
    "export.input_tensors.dtype": Meaning("Type. Default: that of the usual input."),
    "export.input_tensors.shape": Meaning("Whole numbers; a text names a dynamic axis."),
    "export.input_tensors.value_range": Meaning("Range of random data, end excluded."),
    "export.output_tensors": Meaning("Outputs to export. Default: those of the task."),
    "export.output_tensors.name": Meaning("Name of an output of the PyTorch model."),
    "export.module_arguments": _added(
        "Arguments of the module in `loader.module_path` that are not tensors: `{input_dimensions: [8, 8]}`."
    ),
    "export.dynamic_axes": Meaning("Name of a dynamic axis by tensor and axis number: `{input_ids: {0: batch}}`."),
    "export.export_params": Meaning("`false` is an error: a model without weights cannot be validated or compiled."),
    "export.do_constant_folding": Meaning("Fold constants during export."),
    "export.verbose": _unused("The stage's log always has the exporter's output."),
    "export.dynamo": Meaning(
        "`true`: dynamo, `false`: TorchScript. Default: dynamo for decoder language models, else TorchScript "
        "(`false` in winml-cli)."
    ),
    "export.clean_onnx": Meaning("Remove the tags of `enable_hierarchy_tags` from the model itself."),
    "export.enable_hierarchy_tags": Meaning(
        "Record the PyTorch module of each node in the model and in `export_htp_metadata.json`."
    ),
    "export.hierarchy_tag_format": Meaning("Format of these tags."),
    "export.shape_config": _added(
        "Sizes by dimension name: `{sequence_length: 64}`, `{height: 384, width: 384}`. They win over sizes in "
        "`input_tensors`; a named axis there stays open. For an export, unused dimensions are ignored; for an ONNX "
        "model, unknown names are errors."
    ),
    "export.compatibility": Meaning("See below."),
    "export.compatibility.transformers_attention": Meaning("Attention is always exported as `eager`."),
    "quant.mode": Meaning("static: QDQ with calibration. dynamic: integer weights only. rtn: weights in blocks. "
                          "`qdq` means static."),
    "quant.samples": Meaning("Number of random samples, or the maximum taken from your data. "
                             "Alias: `calibration_samples`."),
    "quant.calibration_method": Meaning("How ranges are computed from the observed values."),
    "quant.calibration_data": _added("[Calibration data](../how-to/calibration-data.md): arrays, texts, images or "
                                     "tables; a file or folder, relative to the recipe."),
    "quant.task": Meaning("Task of the data set: `question-answering` uses the columns `question` and `context`. "
                          "Default: the model's task."),
    "quant.model_id": Meaning("Folder (relative to the recipe) or hub id of the tokenizer or image processor. "
                              "Default: the model's own."),
    "quant.dataset_name": Meaning("A data set: a folder, relative to the recipe, or a hub id."),
    "quant.dataset_subset": _added("Subset of the data set. Default: its default subset."),
    "quant.dataset_split": _added("Split of the data set."),
    "quant.columns_mapping": _added("Table column per model input, or for `text`, `text_pair` and `image`. Default: "
                                    "columns with these names."),
    "quant.model_type": Meaning("Static: `qwen3` has its own defaults for types (symmetric int8 weights, 16-bit "
                                "activations, GroupQueryAttention in float); others have none."),
    "quant.weight_type": Meaning("Static and dynamic: type of weights. Default: by the "
                                 "[table of providers](precisions.md#types-and-their-sources)."),
    "quant.activation_type": Meaning("Static: type of activations. Default: by the same table."),
    "quant.per_channel": Meaning("One scale per channel of a weight. Default: by the same table (false in "
                                 "winml-cli)."),
    "quant.symmetric": Meaning("Zero point in the middle, for weights and activations. Default: by the same table."),
    "quant.weight_symmetric": Meaning("The same for weights only. Default: `quant.symmetric`."),
    "quant.activation_symmetric": Meaning("The same for activations only. Default: `quant.symmetric`."),
    "quant.op_types_to_quantize": Meaning("Operators to quantize, by name or pattern (`*`, `?`). Default: all with "
                                          "rules; for static quantization on the CPU [those that "
                                          "pay off](precisions.md#what-the-cpu-quantizes). For w4a16, the 4-bit "
                                          "weights only."),
    "quant.op_types_to_exclude": _added("Operators to keep in float, by name or pattern."),
    "quant.nodes_to_exclude": Meaning("Nodes to keep in float, by name or pattern; each must match."),
    "quant.node_overrides": _added("Types of single nodes; see [below](#quantnode_overrides)."),
    "quant.node_overrides.weight_type": Meaning("Type of the weight of these nodes."),
    "quant.node_overrides.activation_type": Meaning("Type of all activations that these nodes read and write."),
    "quant.equalize": _added("Static with 8-bit activations: handle [outliers](../how-to/w8a8.md) around "
                             "normalizations. Default: on."),
    "quant.rtn_bits": Meaning("rtn: bits of a weight."),
    "quant.rtn_block_size": Meaning("rtn: weights per scale."),
    "quant.rtn_symmetric": Meaning("rtn: no zero points."),
    "quant.rtn_accuracy_level": Meaning("rtn: `accuracy_level` of MatMulNBits."),
    "quant.rtn_float_type": _added("rtn: type of everything without integer weights. `float16` (w4a16) is a second "
                                   "step, with the fields of fp16."),
    "quant.reduce_range": Meaning("Static and dynamic: 7-bit weights, for processors that overflow with 8."),
    "quant.fp16_keep_io_types": Meaning("fp16: inputs and outputs stay in float32."),
    "quant.fp16_op_block_list": Meaning("fp16: operators that stay in float32, by name or pattern, besides those "
                                        "without a float16 form."),
    "quant.save_calibration": Meaning("Write the ranges into the output folder, as `calibration_ranges.json`."),
    "quant.distribution": Meaning("Of random calibration data. With ranges from a file, it must agree with them."),
    "quant.seed": Meaning("Random data: default 0. Your data: chooses samples; default: the first ones. With ranges "
                          "from a file, it must agree with them."),
    "quant.calibration_load_path": Meaning("Ranges from a file, relative to the recipe, instead of calibrating. "
                                           "Alias: `load_path`."),
    "quant.calibration_save_path": Meaning("A file in the recipe's folder to write the ranges to."),
    "compile.execution_provider": Meaning("Name or alias; the key `ep` at the top wins."),
    "compile.provider_options": Meaning("Options of the provider; values are text, so quote numbers. "
                                        "See [QNN's](execution-providers.md#options-of-qnn)."),
    "compile.provider_option_file_keys": Meaning("Options whose value is a file; its content is in the key."),
    "compile.enable_ep_context": Meaning("`false`: do not compile."),
    "compile.embed_context": Meaning("`true`: the binary is inside the model instead of in a separate file."),
    "compile.compiler": Meaning("`ort`: onnxruntime's compile API. `ort_session`: a session that saves its compiled "
                                "model. `qairt`: the [QAIRT SDK](../how-to/compile-for-qnn.md#qairt-sdk)."),
    "compile.qnn_sdk_root": Meaning("Folder of that SDK, relative to the recipe. The key has its content, not its "
                                    "path."),
    "compile.soc_model": _added("The chip by number or name, such as `60` or "
                                "`Snapdragon X Elite`. See [chips](execution-providers.md#chips)."),
    "compile.htp_arch": _added("NPU architecture version; derived from a known chip."),
    "compile.htp_optimization_level": _added("How long QNN optimizes the graph. Default: 3. See [cost of the "
                                             "levels](../how-to/compile-for-qnn.md#chip-and-optimization-level)."),
    "compile.require_full_offload": _added("`true`: fail if an operator stays on the CPU; conversions of inputs and "
                                           "outputs do not count."),
    "compile.device": Meaning("Device, if the key `device` at the top is not set."),
    "compile.ep_device": Meaning("See below."),
    "compile.ep_device.ep": Meaning("Execution provider."),
    "compile.ep_device.device": Meaning("Device."),
    "compile.ep_device.source": _unused("Where a provider comes from."),
    "compile.validate": Meaning("`false`: skip the validate stage."),
    "compile.quantize": _unused("For old files. Replaced by `quant` and `quant_config`: `true` is an error if nothing "
                                "is quantized, `false` beside `quant_config`."),
    "compile.verbose": _unused("The stage's log always has the compiler's output."),
    "compile.quant_config": _added("A `quant` section for this target; an error beside `quant`."),
    "compile.ep_config": Meaning("See below."),
    "components.precision": _added("Overrides the recipe's precision."),
    "components.export": _added("Fields of `export`, such as input tensors."),
    "components.optim": _added("Capabilities that are on or off for this component."),
    "components.quant": _added("Fields of `quant`; null: do not quantize this component."),
    "components.compile": _added("Fields of `compile`; null: do not compile this component."),
    "components.validate": _added("Fields of `validate`."),
    "components.skip_optimize": _added("Skip optimize for this component."),
    "stages.command": _added("A program and its arguments, with `{inputs.name}`, `{outputs.name}`, `{config.name}`."),
    "stages.run": _added("A Python function instead of a command: `package.module:function`."),
    "stages.uses": _added("A stage from an installed package, by name."),
    "stages.inputs": _added("By name: a file, a folder (ending with `/`), or `stage.output`."),
    "stages.outputs": _added("By name: a file or folder (ending with `/`) inside the recipe's folder."),
    "stages.env": _added("Environment variables; besides these a command gets only a few fixed ones."),
    "stages.config": _added("Values for `{config.name}`, for the function's third argument, or for the plug-in."),
    "stages.timeout": _added("Time limit in seconds. Default: 3600. Not in the key."),
    "validate.enabled": _added("`false`: skip the validate stage."),
    "validate.min_cosine": _added("Lowest cosine of each output. Default: by "
                                  "[precision](precisions.md#bounds-of-validate)."),
    "validate.min_sqnr_db": _added("Lowest signal-to-quantization-noise ratio of each output, in dB. Default: 0.5, or "
                                   "none with `min_cosine`."),
    "validate.max_abs_error": _added("Largest error of a single value. Default: none."),
    "validate.min_top1_agreement": _added("Lowest share of decisions with the same best class, for outputs that are "
                                          "class scores. Default: none."),
    "validate.input_data": _added("Data to compare on, as for `quant.calibration_data`, relative to the recipe. "
                                  "Default: held-out calibration data, or random inputs. See "
                                  "[Validation](../how-to/validation.md#choose-the-inputs)."),
    "validate.samples": _added("Number of inputs to compare on; default for `validate.input_data`: all."),
    "validate.seed": _added("Seed of random inputs."),
    "perf.warmup": _added("Inferences before measuring."),
    "perf.iterations": _added("Inferences to measure. Default: 100, unless `perf.duration` is set."),
    "perf.duration": _added("Seconds to measure; excludes `perf.iterations`."),
    "perf.threads": _added("Threads per operator. Default: onnxruntime's."),
    "perf.batch_size": _added("Samples per inference. For open batches, default 1; for fixed inputs, declares that "
                              "their first axis is a batch of this size."),
    "perf.sizes": _added("Sizes of open axes for random inputs, by name: `{sequence_length: 128}`. Default: 1."),
    "perf.seed": _added("Seed of random inputs."),
    "perf.input_data": _added("A .npz file with one array per input, whose first axis counts samples. Default: random "
                              "inputs."),
    "perf.loads": _added("Fresh processes that load the model; their median is reported."),
    "eval.runtime": _rejected("`pytorch`. The reference is a float ONNX model."),
    "eval.mode": Meaning("`onnx`: metrics of a task. `compare`: compare every output with the reference."),
    "eval.model_id": Meaning("Folder or hub id of the tokenizer, image processor and labels. Default: those of the "
                             "model that was built."),
    "eval.model_path": _rejected("The model is what the recipe builds."),
    "eval.input_data": Meaning("For `compare`: a file or folder of inputs, such as a .npz. Default: random inputs."),
    "eval.reference_path": Meaning("The float ONNX model. Default: that of the build."),
    "eval.reference_device": _rejected("Any but `cpu`."),
    "eval.reference_ep": _rejected("Any but `cpu`."),
    "eval.task": Meaning("A [task](../how-to/measure-accuracy.md#tasks). Default: that of the build."),
    "eval.device": Meaning("Where the model runs. `auto`: on the target of the build."),
    "eval.precision": _rejected("It is that of the build."),
    "eval.ep": Meaning("Where the model runs. Default: on the target of the build."),
    "eval.quant": _rejected("A model is built first, then evaluated as it is."),
    "eval.optimize": _rejected("As `eval.quant`."),
    "eval.analyze": _rejected("As `eval.quant`."),
    "eval.max_optim_iterations": _rejected("As `eval.quant`."),
    "eval.shape_config": _rejected("As `eval.quant`."),
    "eval.export_overrides": _rejected("As `eval.quant`."),
    "eval.dataset": Meaning("See below."),
    "eval.batch_size": _added("Samples per run, if the model's batch axis is open."),
    "eval.pooling": _added("How a text's embedding is computed from its tokens: their mean, or the first one "
                           "(`cls`). Default: the model's own text embedding if it has one, else the mean."),
    "eval.output_path": _rejected("Give the folder as `-o`."),
    "eval.skip_build": _rejected("As `eval.quant`."),
    "eval.use_cache": _rejected("As `eval.quant`."),
    "eval.rebuild": _rejected("As `eval.quant`."),
    "eval.trust_remote_code": _rejected("As `eval.quant`."),
    "eval.allow_unsupported_nodes": _rejected("As `eval.quant`."),
    "eval.dataset.path": Meaning("A file, a folder, or the hub id of a data set."),
    "eval.dataset.name": Meaning("Subset of the data set."),
    "eval.dataset.split": Meaning("Split of the data set. A folder without splits is used as a whole by default."),
    "eval.dataset.samples": Meaning("Maximum number of samples."),
    "eval.dataset.shuffle": Meaning("Choose samples at random; `false`: the first ones."),
    "eval.dataset.seed": Meaning("Seed of that choice, or of random inputs."),
    "eval.dataset.columns_mapping": Meaning("Column names that differ from the usual ones, such as "
                                            "`{text: sentence}`."),
    "eval.dataset.label_mapping": Meaning("Class of the model by label of the data. Default: by the names in the "
                                          "model's `config.json`, or by number."),
    "eval.dataset.label_mapping_file": Meaning("The same in a JSON file."),
    "eval.dataset.streaming": _rejected("Files are read sequentially in any case."),
    "eval.dataset.revision": Meaning("A branch, tag or commit of a hub data set."),
    "eval.dataset.build_script": _rejected("Scripts of data sets are not run."),
}  # fmt: skip
