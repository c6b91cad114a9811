"""How much a repository may hold. Generous for real models, and small enough that a hostile or broken folder costs little.

Reaching a bound is an error of the model (or version) that reached it and never of the others.
"""

#: Model folders below all roots together; further ones are left out, in order of their names.
MAX_MODELS = 4096
#: Version folders of one model.
MAX_VERSIONS = 1024
#: The highest version number: the wire carries int64.
MAX_VERSION_NUMBER = 2**63 - 1
#: Files and folders of one version, at any depth.
MAX_FILES_PER_VERSION = 16_384
#: Folders below a version folder, one in the other.
MAX_DEPTH = 8
#: One file.
MAX_FILE_BYTES = 64 << 30
#: All files of one version.
MAX_VERSION_BYTES = 128 << 30
#: config.pbtxt.
MAX_CONFIG_BYTES = 1 << 20
#: Entries of a root or model folder that are looked at.
MAX_FOLDER_ENTRIES = 65_536
#: Files next to the version folders (labels, warm-up data) whose change makes a model load anew.
MAX_COMPANIONS = 1024
#: Why a version failed, in characters, as the index keeps it.
MAX_REASON_LENGTH = 4096
#: Versions up to this size, all files together, are loaded by `stoker check` without being asked to.
TRIAL_LOAD_BYTES = 64 << 20
#: Memory (address space) that the load of one version may take there, beside eight times the size of its files.
TRIAL_MEMORY_BYTES = 4 << 30
#: Address space that each usable core's threads take besides: a stack (8 MiB) and an arena of the C library (64 MiB), with some to spare.
TRIAL_CORE_BYTES = 256 << 20
#: Seconds that such a load may take where the operator does not say.
TRIAL_TIMEOUT_S = 120.0
#: Loads that were given up and have not ended; with more, no load begins. Each may hold a processor and a model's memory.
MAX_LATE_LOADS = 16
#: Links, one leading to the next, on the way to one file (the kernel's own bound).
MAX_LINKS = 40
#: Files and folders of a repository that are looked through for further names of a hard-linked file.
MAX_ROOT_ENTRIES = 1 << 20
