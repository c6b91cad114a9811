"""Keys under which layout passes leave their decisions, for the target and `--check` to read.

They are in `metadata_props` of the model or of its nodes: plain text that ONNX carries through every tool, and that no kernel sees.
"""

#: On the model: tiles set apart for host IO, a decimal number (`overlap_io`).
NUM_IO_TILES = "stoker.num_io_tiles"
#: On the model: JSON list of {tensor_name, input_tensor_names, shape, dtype, data_size_bytes} (`apply_host_concat_split`).
HOST_CONCAT = "stoker.host_concat"
#: On the model: JSON object that states for PackRunner how sequences share rows; the target passes it on as it is.
PACKING = "stoker.packing"
#: On the model: JSON object {input: {mean, std, axis}} of the images that are normalised on the device (`eight_bits_io`).
EIGHT_BITS_IO = "stoker.eight_bits_io"

#: On an Identity node: it moves its tensor into another layout, an exchange of all its bytes; the value is the mode (`auto_insert_remap`).
REMAP = "stoker.remap"
#: On each piece of a node that was split so that the pieces run one after another: `index/count` (`serialize_matmul` and `.._add`).
SERIAL_PIECE = "stoker.serial_piece"
#: On each piece: the name of the node it is a piece of.
SERIAL_OF = "stoker.serial_of"

#: On a node: device and pipeline stage, decimal numbers; PopART's attribute names (`manual_sharding`).
IPU_NUMBER = "__ipu_number"
PIPELINE_STAGE = "__pipeline_stage"
