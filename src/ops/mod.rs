//! Operations fused by hand: shape checks, launch, and the plain CPU version that is the specification of each.
