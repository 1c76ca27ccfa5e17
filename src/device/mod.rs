//! The rim to the hardware: allocator, readings, and the thread that owns every tensor.
