"""The paper's objects, as pure functions of arrays."""
