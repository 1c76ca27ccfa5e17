//! What a profile is valid for.

use sha2::{Digest, Sha256};

/// The version of candle that this program is built with. A test compares it with `Cargo.lock`.
pub(super) const CANDLE_VERSION: &str = "0.11.1";

/// How the allocator counts; raised when that changes, since a peak is what it counts.
const ALLOCATOR: &str = "accounted-1";

/// Everything that a peak or a time depends on. The driver's version and the like belong in the log: on load two
/// points are measured again, and a profile that no longer agrees is replaced.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileFacts {
    /// Kind of device: `cpu`, or the name of a GPU or of its partition.
    pub device: String,
    /// Instruction set of a CPU, compute capability of a GPU.
    pub instruction_set: String,
    /// Threads that compute; 0 on a GPU.
    pub threads: u32,
    /// Version of this program.
    pub version: String,
    /// Version of candle.
    pub candle: String,
    /// How the allocator counts.
    pub allocator: String,
    /// The model's content: a hash over its configuration and the header of its weights.
    pub content: String,
    /// How its matrices are held.
    pub dtype: String,
    /// Longest sequence in tokens.
    pub length_max: u32,
}

impl ProfileFacts {
    /// The facts of a model on this machine's CPU.
    pub fn cpu(content: String, dtype: &str, length_max: u32) -> ProfileFacts {
        ProfileFacts {
            device: format!("cpu-{}", std::env::consts::ARCH),
            instruction_set: crate::device::cpu::instruction_set().to_owned(),
            threads: u32::try_from(crate::device::cpu::compute_threads()).unwrap_or(u32::MAX),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            candle: CANDLE_VERSION.to_owned(),
            allocator: ALLOCATOR.to_owned(),
            content,
            dtype: dtype.to_owned(),
            length_max,
        }
    }

    /// The facts of a model on a GPU. `allocator` says where memory comes from: a peak is what it counts.
    pub fn gpu(
        name: &str,
        (major, minor): (i32, i32),
        allocator: &str,
        content: String,
        dtype: &str,
        length_max: u32,
    ) -> ProfileFacts {
        ProfileFacts {
            device: name.to_owned(),
            instruction_set: format!("compute {major}.{minor}"),
            threads: 0,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            candle: CANDLE_VERSION.to_owned(),
            allocator: format!("{allocator}-2"),
            content,
            dtype: dtype.to_owned(),
            length_max,
        }
    }

    /// The name of the file: 32 hexadecimal digits of a SHA-256 over all facts.
    pub fn key(&self) -> String {
        // Every field, in the order of declaration; the separator keeps neighbours apart.
        let ProfileFacts { device, instruction_set, threads, version, candle, allocator, content, dtype, length_max } =
            self;
        let (threads, length_max) = (threads.to_string(), length_max.to_string());
        let mut hash = Sha256::new();
        for field in [device, instruction_set, &threads, version, candle, allocator, content, dtype, &length_max] {
            hash.update((field.len() as u64).to_le_bytes());
            hash.update(field.as_bytes());
        }
        hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fact_changes_the_key() {
        let facts = ProfileFacts::cpu("abc".to_owned(), "f32", 512);
        assert_eq!(facts.key(), facts.clone().key());
        assert_eq!(facts.key().len(), 32);
        let changes: [fn(&mut ProfileFacts); 9] = [
            |facts| facts.device.push('x'),
            |facts| facts.instruction_set.push('x'),
            |facts| facts.threads += 1,
            |facts| facts.version.push('x'),
            |facts| facts.candle.push('x'),
            |facts| facts.allocator.push('x'),
            |facts| facts.content.push('x'),
            |facts| facts.dtype.push('x'),
            |facts| facts.length_max += 1,
        ];
        let mut keys = vec![facts.key()];
        for change in changes {
            let mut other = facts.clone();
            change(&mut other);
            keys.push(other.key());
        }
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 10);
    }

    #[test]
    fn text_does_not_flow_from_one_fact_into_the_next() {
        let facts = |content: &str, dtype: &str| ProfileFacts::cpu(content.to_owned(), dtype, 1).key();
        assert_ne!(facts("ab", "c"), facts("a", "bc"));
    }

    #[test]
    fn candle_s_version_is_the_one_that_is_built() {
        let lock = include_str!("../../../Cargo.lock");
        let entry = format!("name = \"candle-core\"\nversion = \"{CANDLE_VERSION}\"");
        assert!(lock.contains(&entry), "candle was updated: update CANDLE_VERSION too");
    }
}
