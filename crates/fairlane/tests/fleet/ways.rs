//! Ways into the store other than a user's password: a client's certificate, and credentials that NATS's operator signed.

use crate::guests::wait_for;
use crate::stage::{FAIRLANE, Stage};
use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine};
use nkeys::KeyPair;
use serde_json::{Value, json};
use std::process::Command;

/// The server that knows nobody but whom its operator has signed for.
const SERVER: &str = "nats://10.77.0.1:4223";

/// No limit.
const ALL: i64 = -1;

/// The server of the stage wants a certificate of every client. It has one in all other tests.
pub(crate) fn without_a_certificate_there_is_no_way_in(stage: &Stage) {
    let mut command = Command::new(FAIRLANE);
    command.args(["fleet", "show", "--server", crate::stage::SERVER, "--tls-ca", "ca.pem"]);
    let (status, said) = stage.beside(command);
    assert_eq!((status, said.contains("tls://10.77.0.1:4222")), (Some(1), true), "{said}");
    assert!(said.contains("received fatal alert") && !said.contains("secret"), "{said}");
}

/// # Errors
/// The server is not installed.
pub(crate) fn credentials_are_a_way_in(stage: &Stage) -> Result<(), String> {
    let operator = KeyPair::new_operator();
    let [system, account] = [KeyPair::new_account(), KeyPair::new_account()];
    let user = KeyPair::new_user();
    let of_account = |storage: i64| {
        let limits = json!({
            "subs": ALL, "data": ALL, "payload": ALL, "imports": ALL, "exports": ALL, "wildcards": true, "conn": ALL,
            "leaf": ALL, "mem_storage": storage, "disk_storage": storage, "streams": ALL, "consumer": ALL,
        });
        json!({ "type": "account", "version": 2, "limits": limits })
    };
    let of_user =
        json!({ "type": "user", "version": 2, "subs": ALL, "data": ALL, "payload": ALL, "pub": {}, "sub": {} });
    // A system account has no storage, and without one there is no JetStream.
    let config = format!(
        "listen: 0.0.0.0:4223\njetstream {{ store_dir: \"{}\" }}\noperator: {}\nsystem_account: {system}\n\
         resolver: MEMORY\nresolver_preload: {{ {system}: {}, {}: {} }}\n",
        stage.path("store-of-operator").display(),
        signed(&operator, &operator, json!({ "type": "operator", "version": 2 })),
        signed(&operator, &system, of_account(0)),
        account.public_key(),
        signed(&operator, &account, of_account(ALL)),
        system = system.public_key(),
    );
    let _server = stage.serve_nats("operator", &config)?;
    let seed = user.seed().expect("a new key has its seed");
    let token = signed(&account, &user, of_user);
    let creds = format!(
        "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    );
    std::fs::write(stage.path("good.creds"), creds).unwrap();
    std::fs::write(stage.path("bad.creds"), "nothing\n").unwrap();

    let show = |options: &[&str]| {
        let mut command = Command::new(FAIRLANE);
        command.args(["fleet", "show", "--json", "--server", SERVER]).args(options);
        stage.beside(command)
    };
    wait_for("the server", || show(&["--creds", "good.creds"]) == (Some(0), "[]\n".to_owned()));
    let (status, said) = show(&[]);
    assert_eq!((status, said.contains("authorization violation")), (Some(1), true), "{said}");
    let (status, said) = show(&["--creds", "bad.creds"]);
    assert_eq!((status, said.contains("bad.creds")), (Some(1), true), "{said}");
    Ok(())
}

/// A token of NATS: what `issuer` says of `subject`.
fn signed(issuer: &KeyPair, subject: &KeyPair, says: Value) -> String {
    let claims = json!({
        "jti": "fairlane", "iat": 1_700_000_000, "iss": issuer.public_key(), "sub": subject.public_key(), "name": "fairlane",
        "nats": says,
    });
    let parts = [json!({ "typ": "JWT", "alg": "ed25519-nkey" }), claims];
    let text = parts.map(|part| BASE64_URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
    let signature = issuer.sign(text.as_bytes()).expect("a new key signs");
    format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}
