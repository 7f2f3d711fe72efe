//! Open MPI in a guest: as much of it as runs a program on nodes that a TCP network joins.

use std::path::PathBuf;

use crate::{
    contents::entries,
    error::Error,
    image::{self, Image},
    packages,
};

/// Where Open MPI and PMIx, by which its daemons talk with a node's program, look for their components.
const COMPONENTS: &str = "usr/lib/x86_64-linux-gnu/openmpi/lib/openmpi3";
const COMPRESSION: &str = "usr/lib/x86_64-linux-gnu/pmix2/lib/pmix/pmix_mca_pcompress_zlib.so";

/// Where mpirun looks for what it says of a failure.
const WORDS: &str = "usr/share/openmpi";

/// The components of a TCP network, without those of hardware that a guest has not, of files, and of other schedulers.
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

/// Adds what Open MPI reads besides its programs; answers those, and the program whose exchange is timed, which lies beside
/// the agent.
///
/// # Errors
/// [`Error::Missing`] where a package was not fetched, or the program is not built.
pub fn add(guest: &mut Image) -> Result<Vec<(String, PathBuf)>, Error> {
    // mpirun asks for its user's home and shell, and for a place of its own.
    guest.bytes("etc/passwd", b"root:x:0:0:root:/:/bin/bash\n");
    guest.directory("tmp");
    let words = entries(&packages::files("openmpi-common")?.join(WORDS))?;
    for path in words.into_iter().filter(|path| path.is_file()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        guest.file(&format!("{WORDS}/{name}"), &path)?;
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
