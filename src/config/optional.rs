//! Settings that may be left out: a file, an address.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::written::{Form, Written};

/// A file that may be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionalFile {
    /// There is none.
    None,
    /// This one.
    File(PathBuf),
}

impl OptionalFile {
    /// Its path, if there is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            OptionalFile::None => None,
            OptionalFile::File(path) => Some(path),
        }
    }
}

impl Written for OptionalFile {
    const FORM: Form = Form::Text;

    fn allowed() -> String {
        "\"none\", or the path of a file".into()
    }

    fn read(text: &str) -> Option<OptionalFile> {
        match text {
            "none" => Some(OptionalFile::None),
            "" => None,
            path => Some(OptionalFile::File(path.into())),
        }
    }

    fn show(&self) -> String {
        match self {
            OptionalFile::None => "none".into(),
            OptionalFile::File(path) => path.display().to_string(),
        }
    }

    fn relative_to(self, folder: &Path) -> OptionalFile {
        match self {
            OptionalFile::File(path) => OptionalFile::File(folder.join(path)),
            OptionalFile::None => OptionalFile::None,
        }
    }
}

/// An address and a port that may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionalAddress {
    /// There is none.
    None,
    /// This one.
    At(SocketAddr),
}

impl OptionalAddress {
    /// The address, if there is one.
    pub fn get(&self) -> Option<SocketAddr> {
        match self {
            OptionalAddress::None => None,
            OptionalAddress::At(address) => Some(*address),
        }
    }
}

impl Written for OptionalAddress {
    const FORM: Form = Form::Text;

    fn allowed() -> String {
        "\"none\", or an address and a port such as \"127.0.0.1:8003\"".into()
    }

    fn read(text: &str) -> Option<OptionalAddress> {
        match text {
            "none" => Some(OptionalAddress::None),
            address => address.parse().ok().map(OptionalAddress::At),
        }
    }

    fn show(&self) -> String {
        match self {
            OptionalAddress::None => "none".into(),
            OptionalAddress::At(address) => address.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        fn check<T: Written + PartialEq + std::fmt::Debug>(text: &str) {
            let value = T::read(text).unwrap_or_else(|| panic!("{text} is allowed"));
            assert_eq!(value.show(), text);
            assert_eq!(T::read(&value.show()), Some(value));
        }
        check::<OptionalFile>("none");
        check::<OptionalFile>("some/file");
        check::<OptionalAddress>("none");
        check::<OptionalAddress>("127.0.0.1:8003");
        check::<OptionalAddress>("[::1]:8003");
        assert_eq!(OptionalFile::read(""), None);
        for wrong in ["", "8003", "127.0.0.1", "localhost:8003"] {
            assert_eq!(OptionalAddress::read(wrong), None, "{wrong}");
        }
    }
}
