//! Cases from the field.
