//! A policy file with drop-ins.

use crate::*;

const LAN: &str = "[[link]]\nname = \"lan\"\nrate = \"100Mbit/s\"\n";

fn vif(name: &str, more: &str) -> String {
    format!("[[vif]]\nname = \"{name}\"\nsocket = \"/run/{name}\"\n{more}\n")
}

fn files(drop_ins: &[(&str, &str)]) -> Files {
    let drop_ins = drop_ins.iter().map(|(name, text)| File::new(format!("p.d/{name}"), *text)).collect();
    Files::new(File::new("p.toml", LAN), drop_ins)
}

fn names(loaded: &Loaded) -> Vec<&str> {
    loaded.policy.vifs.iter().map(|vif| vif.name.as_str()).collect()
}

fn said(problems: &[problem::Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn drop_ins_add_in_the_order_of_their_names_and_the_saved_one_is_last() {
    let tenant = "[[tenant]]\nname = \"red\"\n[[link]]\nname = \"dmz\"\n";
    let saved = format!("[remove]\nvif = [\"web\", \"no-more\"]\ntenant = []\n{}", vif("web", "weight = 7"));
    // `b` uses a tenant of a later file, and the only link of the policy file.
    let (a, b) = (vif("web", ""), vif("b", "tenant = \"red\""));
    let files = files(&[("saved.toml", &saved), ("z.toml", tenant), ("b.toml", &b), ("a.toml", &a)]);
    let loaded = files.load(&Files::default()).unwrap();
    assert_eq!(said(&loaded.problems), Vec::<String>::new());
    assert_eq!(names(&loaded), ["b", "web"]);
    assert_eq!((loaded.policy.vifs[0].link.as_str(), loaded.policy.vifs[1].shares.tx.weight), ("lan", 7));
    assert_eq!(loaded.base.vifs[0].shares.tx.weight, 100, "without what was saved");
    assert_eq!(files.saved().unwrap().file_name().unwrap(), SAVED);
    assert!(files.saved().unwrap().is_absolute());
}

#[test]
fn a_vif_without_a_link_is_on_the_only_one_wherever_that_is() {
    let of = |policy: &str, drop_ins: &[(&str, &str)]| {
        Files::new(File::new("p.toml", policy), files(drop_ins).drop_ins().to_vec()).load(&Files::default())
    };
    // The link is in a later file than the vifs.
    let (web, a) = (vif("web", ""), vif("a", ""));
    let loaded = of(&web, &[("a.toml", &a), ("lan.toml", LAN)]).unwrap();
    let links: Vec<&str> = loaded.policy.vifs.iter().map(|vif| vif.link.as_str()).collect();
    assert_eq!((links, said(&loaded.problems).len()), (vec!["lan", "lan"], 0));
    // Or there is none, or several.
    assert_eq!(said(&of(&web, &[("a.toml", &a)]).unwrap_err()), ["p.toml:1: no [[link]]: a policy needs at least one"]);
    let two = format!("{LAN}[[link]]\nname = \"dmz\"\n");
    let missing = |file: &str| format!("{file}:1: link is missing, the links are lan, dmz");
    assert_eq!(said(&of(&web, &[("two.toml", &two)]).unwrap_err()), [missing("p.toml")]);
    assert_eq!(said(&of("", &[("a.toml", &a), ("two.toml", &two)]).unwrap().problems), [missing("p.d/a.toml")]);
}

#[test]
fn a_wrong_drop_in_is_named_and_the_rest_is_loaded() {
    let (a, b) = (vif("a", ""), vif("b", "wieght = 3"));
    let first = files(&[("a.toml", &a), ("b.toml", &b), ("c.toml", "[[vif]"), ("d.toml", "control = \"/c\"\n")]);
    let first = first.load(&Files::default()).unwrap();
    let problems = said(&first.problems);
    assert_eq!(names(&first), ["a"]);
    assert!(
        problems[0].starts_with("p.d/b.toml:4: unknown key `wieght` in [[vif]], did you mean `weight`?"),
        "{problems:?}"
    );
    assert!(problems[1].starts_with("p.d/c.toml:1: "), "{problems:?}");
    let keys = "p.d/d.toml:1: unknown key `control` in a drop-in file (its keys are link, tenant, vif, remove)";
    assert_eq!(problems[2..], [keys]);

    // Each former state stays in force, whatever is wrong with the newer one; what is right is loaded.
    let good = files(&[("a.toml", &a), ("b.toml", &vif("b", "weight = 3"))]).load(&first.files).unwrap();
    assert_eq!((names(&good), said(&good.problems).len()), (vec!["a", "b"], 0));
    // They may be read by another path.
    let unreadable = File::unreadable("/etc/p.d/a.toml", "Permission denied");
    let (b, c) = (vif("b", "weight = 0"), vif("c", ""));
    let newer = vec![unreadable, File::new("/etc/p.d/b.toml", b), File::new("/etc/p.d/c.toml", c)];
    let newer = Files::new(File::new("/etc/p.toml", LAN), newer);
    let newer = newer.load(&good.files).unwrap();
    assert_eq!(names(&newer), ["a", "b", "c"]);
    assert_eq!(newer.policy.vifs[1].shares.tx.weight, 3);
    assert_eq!(
        said(&newer.problems),
        ["/etc/p.d/a.toml:1: cannot be read: Permission denied", "/etc/p.d/b.toml:4: weight must be 1 to 10000, not 0"]
    );
}

#[test]
fn of_drop_ins_that_do_not_fit_together_the_changed_one_is_left_out() {
    let (a, z) = (vif("a", "min_rate = \"60Mbit/s\""), vif("z", ""));
    let old = files(&[("a.toml", &a), ("z.toml", &z)]).load(&Files::default()).unwrap();
    // `b` has the name of a later file's vif: the problem is on the later one's line, but `b` is at fault.
    let (b, c) = (vif("z", ""), vif("c", "min_rate = \"50Mbit/s\""));
    let newer = files(&[("a.toml", &a), ("b.toml", &b), ("c.toml", &c), ("d.toml", &vif("d", "")), ("z.toml", &z)]);
    let newer = newer.load(&old.files).unwrap();
    assert_eq!(names(&newer), ["a", "d", "z"]);
    let problems = said(&newer.problems);
    assert!(problems.contains(&"p.d/z.toml:2: name `z` is taken by another vif".to_owned()), "{problems:?}");
    let sum = "p.toml:3: the min_rates on link `lan` add up to 110Mbit/s, above its rate 100Mbit/s";
    assert!(problems.contains(&sum.to_owned()), "{problems:?}");
    // A file that others need is not gone before they are.
    let red = files(&[("r.toml", "[[tenant]]\nname = \"red\"\n"), ("z.toml", &vif("z", "tenant = \"red\""))]);
    let red = red.load(&newer.files).unwrap();
    let without = files(&[("z.toml", &vif("z", "tenant = \"red\""))]).load(&red.files).unwrap();
    assert_eq!((said(&without.problems).len(), without.policy.tenants.len()), (1, 1));
    let moved = files(&[("z.toml", &z)]).load(&without.files).unwrap();
    assert_eq!((said(&moved.problems).len(), moved.policy.tenants.len()), (0, 0));
}

#[test]
fn a_policy_file_that_needs_drop_ins_is_served_without_the_wrong_ones() {
    let needs = |drop_ins: &[(&str, &str)]| {
        let text = format!("{LAN}{}", vif("web", "tenant = \"red\"\nmin_rate = \"60Mbit/s\""));
        Files::new(File::new("p.toml", text), files(drop_ins).drop_ins().to_vec()).load(&Files::default())
    };
    let red = "[[tenant]]\nname = \"red\"\nmin_rate = \"70Mbit/s\"\n";
    let greedy = vif("a", "min_rate = \"50Mbit/s\"");
    // Some come before the one that is needed, some after it.
    let wrong = [("a.toml", greedy.as_str()), ("b.toml", "[[vif]"), ("r.toml", red), ("z.toml", "[[vif]]\nname = 7\n")];
    let loaded = needs(&wrong).unwrap();
    assert_eq!((names(&loaded), loaded.files.drop_ins().len()), (vec!["web"], 1));
    let files: Vec<&str> = loaded.problems.iter().map(|problem| problem.file.as_str()).collect();
    assert_eq!(files, ["p.toml", "p.d/b.toml", "p.d/z.toml", "p.d/z.toml"], "{:?}", said(&loaded.problems));

    // The one that is needed may need another.
    let red_on = format!("{red}min_rate_on.dmz = \"1Mbit/s\"\n");
    let loaded = needs(&[("a.toml", "[[vif]"), ("b.toml", &red_on), ("c.toml", "[[link]]\nname = \"dmz\"\n")]).unwrap();
    assert_eq!((loaded.policy.links.len(), loaded.files.drop_ins().len(), loaded.problems.len()), (2, 2, 1));

    // Without links of its own, a policy file hides what is wrong with vifs.
    let nowhere = vif("a", "link = \"lna\"");
    let without = [("a.toml", nowhere.as_str()), ("lan.toml", LAN)];
    let without = Files::new(File::new("p.toml", ""), self::files(&without).drop_ins().to_vec());
    let without = without.load(&Files::default()).unwrap();
    assert_eq!(said(&without.problems), ["p.d/a.toml:4: no link is named `lna`, did you mean `lan`?"]);

    // If the needed one is wrong, nothing is right: all mistakes are said.
    let problems = said(&needs(&[("a.toml", "[[vif]"), ("r.toml", &red.replace("70", "0"))]).unwrap_err());
    assert!(problems.len() == 1 && problems[0].starts_with("p.d/a.toml:1: "), "syntax errors come first: {problems:?}");
    let problems = said(&needs(&[("r.toml", &red.replace("70", "0"))]).unwrap_err());
    assert!(problems[0].starts_with("p.d/r.toml:3: min_rate must be "), "{problems:?}");
}

#[test]
fn a_wrong_policy_file_is_refused_with_all_problems() {
    let wrong = Files::new(File::new("p.toml", "[[link]]\n"), vec![File::new("p.d/a.toml", "[remove]\nvifs = []\n")]);
    let problems = said(&wrong.load(&Files::default()).unwrap_err());
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert_eq!(problems[0], "p.toml:1: name is missing");
    assert!(problems[1].starts_with("p.d/a.toml:2: unknown key `vifs` in remove, did you mean `vif`?"), "{problems:?}");
}
