//! Does this processor have the instructions that the program was built for? Without this check an older one ends the
//! program with an illegal instruction and no word.

/// The name of an instruction set that the program was built for and the processor lacks, if there is one.
///
/// The standard library's own detection cannot tell: where a feature is enabled for the whole program, it answers "yes"
/// without looking.
pub fn missing_instructions() -> Option<&'static str> {
    #[cfg(all(target_arch = "x86_64", target_feature = "avx2", target_feature = "fma"))]
    {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        const FMA: u32 = 1 << 12; // leaf 1, ecx
        const AVX2: u32 = 1 << 5; // leaf 7, ebx
        #[allow(unused_unsafe, reason = "safe from some version of the standard library on")]
        // SAFETY: every x86-64 processor has `cpuid`; leaf 0 says which further leaves there are.
        let (first, seventh) = unsafe {
            let leaves = __cpuid(0).eax;
            (__cpuid(1).ecx, if leaves >= 7 { __cpuid_count(7, 0).ebx } else { 0 })
        };
        if seventh & AVX2 == 0 {
            return Some("AVX2");
        }
        if first & FMA == 0 {
            return Some("FMA");
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_processor_that_runs_this_has_what_this_was_built_for() {
        assert_eq!(super::missing_instructions(), None);
    }
}
