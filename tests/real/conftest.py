"""What real engines need of the process that tests them."""

import ctypes
import sys

import sentencepiece  # noqa: F401 - transformers loads it as well

# sentencepiece 0.2.1, which SGLang pins, crashes when the interpreter ends: its last act frees a capsule with types
# that are gone already (0.2.3 does not). A reference that is never given back keeps the capsule.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(sys.modules["swig_runtime_data4"].type_pointer_capsule))
