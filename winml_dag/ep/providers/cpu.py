"""onnxruntime's own kernels for the CPU, which are part of every onnxruntime."""

from __future__ import annotations

from winml_dag.ep.provider import ONNXRUNTIME_QUANTIZATION, ExecutionProvider, Integers

# The operators that are quantized with 8-bit activations on the CPU. Each operator was put alone between Q and DQ,
# optimized by onnxruntime 1.31 at its highest level, and timed on x86-64 (microseconds as integers / in float, one
# thread).
_OF_8_BITS = tuple(
    sorted(
        {
            # These have integer kernels, which are faster between quantized neighbours: Conv 187/247, MatMul 98/140,
            # after a Conv Sigmoid 318/416, GlobalAveragePool 137/193. Those of Softmax (151/17) and AveragePool
            # (411/223) are slower.
            *("Add", "Concat", "Conv", "Gemm", "GlobalAveragePool", "LeakyRelu", "MatMul", "Mul", "Sigmoid", "Where"),
            # These move values, and move bytes without Q and DQ: MaxPool between Convs 180/231.
            *("ArgMax", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "MaxPool", "Reshape"),
            *("Resize", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
            # These merge into the range of the previous operator; a text classifier has 26.4 dB with them, and 14.0
            # without.
            *("Clip", "Relu"),
            # No kernel, but required to reduce outliers: all-MiniLM-L6-v2 has 14.6 dB with it, and 5.5 without.
            "LayerNormalization",
            # No kernel, but weights, which take a quarter of the space. The same is true of tables that Gather reads.
            "ConvTranspose",
        }
    )
)
# Nothing has integer kernels for 16 bits: Q and DQ around float operators only cost time. So these are the operators
# with weights, for their size; those that merge into ranges; and Sigmoid, whose range covers saturation. A text
# detector in w8a16 takes 8.0 ms with these and 12.3 ms with all operators, at 21.6 and 21.7 dB.
_OF_16_BITS = ("Clip", "Conv", "ConvTranspose", "Gather", "Gemm", "MatMul", "Relu", "Sigmoid")

PROVIDER = CPU = ExecutionProvider(
    name="CPUExecutionProvider",
    alias="cpu",
    devices=("cpu",),
    place=4,
    places={"cpu": 1},
    for_this_machine=False,
    how_to_get="It is part of onnxruntime.",
    ihv_type="Microsoft",
    integers=Integers(
        # Worst cosine of all-MiniLM-L6-v2 in w8a16: 0.978 with a scale for each tensor, 0.998 for each channel.
        per_channel=True,
        mixes_widths=True,
        operators={8: _OF_8_BITS, 16: _OF_16_BITS},
        source=ONNXRUNTIME_QUANTIZATION,
        reason="uint8 with uint8 saturates on no processor; with int8 weights, products do on x86-64 without VNNI",
    ),
)
