//! Open MPI in a guest's image: the parts that run a program on several nodes over TCP.

use std::path::PathBuf;

use crate::{
    contents::entries,
    error::Error,
    image::{self, Image},
    packages,
};

/// The directories of the components of Open MPI, and of PMIx, the protocol between its daemons and a node's programs.
const COMPONENTS: &str = "usr/lib/x86_64-linux-gnu/openmpi/lib/openmpi3";
const COMPRESSION: &str = "usr/lib/x86_64-linux-gnu/pmix2/lib/pmix/pmix_mca_pcompress_zlib.so";

/// The directory of mpirun's error messages.
const MESSAGES: &str = "usr/share/openmpi";

/// The components needed on a TCP network. Those for other hardware, for files and for other schedulers are left out.
const NAMES: [&str; 34] = [
    "allocator_basic",
    "allocator_bucket",
    "bml_r2",
    "btl_self",
    "btl_tcp",
    "coll_basic",
    "coll_libnbc",
    "coll_self",
    "coll_tuned",
    "errmgr_default_app",
    "errmgr_default_hnp",
    "errmgr_default_orted",
    "ess_env",
    "ess_hnp",
    "ess_pmi",
    "grpcomm_direct",
    "iof_hnp",
    "iof_orted",
    "odls_default",
    "oob_tcp",
    "osc_pt2pt",
    "plm_rsh",
    "pmix_ext3x",
    "pml_ob1",
    "reachable_weighted",
    "regx_fwd",
    "rmaps_round_robin",
    "rml_oob",
    "routed_radix",
    "schizo_ompi",
    "shmem_mmap",
    "state_app",
    "state_hnp",
    "state_orted",
];

/// Adds the data files of Open MPI to an image; returns its programs and components, and the measured program, which is in the
/// agent's directory.
///
/// # Errors
/// [`Error::Missing`] if a package was not fetched, or the program is not built.
pub(crate) fn add(guest: &mut Image) -> Result<Vec<(String, PathBuf)>, Error> {
    // mpirun needs its user's home and shell, and a temporary directory.
    guest.bytes("etc/passwd", b"root:x:0:0:root:/:/bin/bash\n");
    guest.directory("tmp");
    let messages = entries(&packages::files("openmpi-common")?.join(MESSAGES))?;
    for path in messages.into_iter().filter(|path| path.is_file()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        guest.file(&format!("{MESSAGES}/{name}"), &path)?;
    }
    let (programs, library) = (packages::files("openmpi-bin")?, packages::files("libopenmpi3")?);
    let mut files = vec![
        ("all-to-all".to_owned(), image::all_to_all()?),
        (COMPRESSION.to_owned(), packages::files("libpmix2")?.join(COMPRESSION)),
    ];
    files.extend(["orterun", "orted"].map(|name| (format!("bin/{name}"), programs.join("usr/bin").join(name))));
    files
        .extend(NAMES.map(|name| format!("{COMPONENTS}/mca_{name}.so")).map(|name| (name.clone(), library.join(name))));
    Ok(files)
}
