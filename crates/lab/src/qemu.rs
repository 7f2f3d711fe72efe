//! QEMU guests.
use crate::{
    error::Error,
    guest::{GuestSpec, Machine},
};
use std::path::Path;
pub fn machine(_spec: &GuestSpec, _agent: &Path) -> Result<Machine, Error> {
    todo!()
}
