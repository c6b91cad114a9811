"""Metadata keys under which layout passes store decisions for the target and for `--check`.

The keys are in `metadata_props` of the model or of its nodes. ONNX keeps this plain text in every tool, and kernels do not see it.
"""

#: On the model: number of tiles reserved for host IO, decimal (`overlap_io`).
NUM_IO_TILES = "stoker.num_io_tiles"
#: On the model: JSON list of {tensor_name, input_tensor_names, shape, dtype, data_size_bytes} (`apply_host_concat_split`).
HOST_CONCAT = "stoker.host_concat"
#: On the model: JSON object that tells PackRunner how sequences share rows; the target copies it unchanged.
PACKING = "stoker.packing"
#: On the model: JSON object {input: {mean, std, axis}} of the images that are normalised on the device (`eight_bits_io`).
EIGHT_BITS_IO = "stoker.eight_bits_io"

#: On a converted model: JSON list of the operators of its source (`convert/source_operators.py`).
SOURCE_OPERATORS = "stoker.source_operators"

#: On an Identity node: marks a remap, an exchange of all bytes into another layout; the value is the mode (`auto_insert_remap`).
REMAP = "stoker.remap"
#: On each piece of a node that was split into sequential pieces: `index/count` (`serialize_matmul` and `.._add`).
SERIAL_PIECE = "stoker.serial_piece"
#: On each piece: the name of the original node.
SERIAL_OF = "stoker.serial_of"

#: On a node: device and pipeline stage, decimal numbers; PopART's attribute names (`manual_sharding`).
IPU_NUMBER = "__ipu_number"
PIPELINE_STAGE = "__pipeline_stage"
