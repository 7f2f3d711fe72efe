//! Kernel modules: the files that a guest must load, in dependency order.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use crate::error::{Error, IoContext};

/// Finds the modules `wanted` and their dependencies under `tree`, each after its own dependencies. A module without a file there
/// is built into the kernel or not needed.
pub(crate) fn resolve(tree: &Path, wanted: &[&str]) -> Result<Vec<PathBuf>, Error> {
    let mut files = BTreeMap::new();
    collect(tree, &mut files)?;
    let mut order = Vec::new();
    for name in wanted {
        add(name, &mut files, &mut order)?;
    }
    Ok(order)
}

/// Moves a module's file from `files` to `order`, after its dependencies.
fn add(name: &str, files: &mut BTreeMap<String, PathBuf>, order: &mut Vec<PathBuf>) -> Result<(), Error> {
    if let Some(path) = files.remove(&normalized(name)) {
        let bytes = fs::read(&path).doing(|| path.display().to_string())?;
        for need in depends(&bytes) {
            add(&need, files, order)?;
        }
        order.push(path);
    }
    Ok(())
}

fn collect(tree: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<(), Error> {
    let describe = || tree.display().to_string();
    for entry in fs::read_dir(tree).doing(describe)? {
        let entry = entry.doing(describe)?;
        let path = entry.path();
        if entry.file_type().doing(describe)?.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "ko") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            files.insert(normalized(&name), path);
        }
    }
    Ok(())
}

/// A module's name with `_` in place of `-`: the two are equivalent.
fn normalized(name: &str) -> String {
    name.replace('-', "_")
}

/// The modules a module depends on: its section `.modinfo` has a zero-terminated string `depends=a,b`.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let list = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(list).split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_come_first_and_once() {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir_all(tree.path().join("net/deep")).unwrap();
        for (file, info) in [
            ("net/virtio_net.ko", &b"license=GPL\0depends=net-failover,virtio,virtio_ring\0name=virtio_net\0"[..]),
            ("net/deep/net_failover.ko", b"a\0depends=failover\0"),
            ("failover.ko", b"a\0depends=\0"),
            ("virtio.ko", b"no information"),
            ("other.ko", b"a\0depends=virtio\0"),
        ] {
            fs::write(tree.path().join(file), info).unwrap();
        }
        let order = resolve(tree.path(), &["virtio_net", "net_failover", "built_in"]).unwrap();
        let names: Vec<_> = order.iter().map(|path| path.file_stem().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["failover", "net_failover", "virtio", "virtio_net"]);
    }
}
