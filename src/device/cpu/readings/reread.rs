//! A file that is read again and again from its start.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Largest text that is read. `/proc/meminfo` has 1.5 KB, `memory.stat` 2 KB; a longer one would lose its end.
const TEXT_MAX: usize = 16 << 10;

/// An open file of the kernel's and a buffer: reading it again is one system call and no allocation.
pub(super) struct Reread {
    file: File,
    buffer: Box<[u8]>,
}

impl Reread {
    pub(super) fn open(path: &Path) -> io::Result<Reread> {
        Ok(Reread { file: File::open(path)?, buffer: vec![0; TEXT_MAX].into_boxed_slice() })
    }

    /// The file's text now.
    pub(super) fn text(&mut self) -> io::Result<&str> {
        let length = self.file.read_at(&mut self.buffer, 0)?;
        std::str::from_utf8(&self.buffer[..length]).map_err(io::Error::other)
    }
}
