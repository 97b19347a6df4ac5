//! Files that arguments name: looked at before they are written, read whole where they are text.

use std::io::Read;
use std::path::Path;

use super::error::CliError;

/// No text that a person gives is longer; what goes on without end is refused here.
const MOST_BYTES: u64 = 1 << 30;

/// Refuses a file to be written, before any work, if there is no folder for it.
pub(crate) fn check_output(path: &Path) -> Result<(), CliError> {
    if path.as_os_str() == "-" {
        return Err(CliError::Usage("'-' is no file to write to here; ./- is one".into()));
    }
    match path.parent().filter(|it| !it.as_os_str().is_empty() && !it.is_dir()) {
        None => Ok(()),
        Some(folder) => {
            let (path, folder) = (path.display(), folder.display());
            Err(CliError::Input(format!("{path}: there is no folder '{folder}'")))
        }
    }
}

/// A file to read, or `-` for stdin.
pub(crate) fn read_input(path: &Path) -> Result<Vec<u8>, CliError> {
    let read = if path.as_os_str() == "-" {
        read_at_most(std::io::stdin().lock())
    } else {
        std::fs::File::open(path).and_then(read_at_most)
    };
    let bytes = read.map_err(|err| CliError::io(path, &err))?;
    if bytes.len() as u64 > MOST_BYTES {
        let path = path.display();
        return Err(CliError::Input(format!("{path}: more than {MOST_BYTES} bytes")));
    }
    Ok(bytes)
}

/// All bytes, or one more than may be.
fn read_at_most(input: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// As [`read_input`], and it must be text.
pub(crate) fn read_text(path: &Path) -> Result<String, CliError> {
    String::from_utf8(read_input(path)?).map_err(|err| {
        let at = err.utf8_error().valid_up_to();
        CliError::Input(format!("{}: not UTF-8 at byte {at}", path.display()))
    })
}
