//! The hub path against a small server that plays the hub.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What the server has and how it behaves.
#[derive(Default)]
struct Play {
    files: BTreeMap<&'static str, Vec<u8>>,
    /// Digests that the listing gives instead of the true ones.
    claimed: BTreeMap<&'static str, String>,
    /// After how many bytes the next answers with weights end; the last entry is used first.
    cuts: Vec<usize>,
    /// The first line and the range of each request for content.
    seen: Vec<String>,
    /// The token that is asked for.
    token: Option<&'static str>,
    /// What headers say of a file: its digest and its commit.
    headers: Option<(&'static str, &'static str)>,
    /// The size that the listing gives of all files with a digest.
    lengths: Option<usize>,
}

/// A running server. It ends with the process: the tests need no more.
struct Server {
    address: String,
    play: Arc<Mutex<Play>>,
}

impl Server {
    fn start(play: Play) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        let play = Arc::new(Mutex::new(play));
        let shared = play.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // A client that has seen enough closes the connection.
                let _ = answer(stream.expect("accepted"), &mut shared.lock().expect("no panic in another answer"));
            }
        });
        Server { address, play }
    }

    fn seen(&self) -> Vec<String> {
        std::mem::take(&mut self.play.lock().expect("no panic in an answer").seen)
    }
}

fn answer(mut stream: TcpStream, play: &mut Play) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    let authorized = play.token.is_none_or(|token| headers.get("authorization") == Some(&format!("Bearer {token}")));
    if !authorized {
        return write!(stream, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
    if path.starts_with("/api/models/org/name/revision/main?") {
        let body = listing(play).to_string();
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())?;
        return Ok(());
    }
    let name = path.strip_prefix(&format!("/org/name/resolve/{COMMIT}/"));
    let Some((name, content)) = name.and_then(|name| play.files.get_key_value(name)) else {
        return write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    };
    let range = headers.get("range").map(String::as_str).unwrap_or_default();
    let (start, end) = range.trim_start_matches("bytes=").split_once('-').expect("the client asks for ranges");
    let start: usize = start.parse().expect("a number");
    let end = end.parse().map_or(content.len(), |last: usize| last + 1);
    // The size is asked for with the first byte alone.
    let asks_for_content = end != 1;
    if asks_for_content {
        play.seen.push(format!("{name} {range}"));
    }
    write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {start}-{}/{}\r\nETag: \"{}\"\r\n\
         x-repo-commit: {}\r\nConnection: close\r\n\r\n",
        end - start,
        end - 1,
        content.len(),
        play.headers.map_or_else(|| etag(play, name), |(etag, _)| etag.to_owned()),
        play.headers.map_or(COMMIT, |(_, commit)| commit),
    )?;
    let cut = if asks_for_content && is_large(name) { play.cuts.pop() } else { None };
    stream.write_all(&content[start..cut.map_or(end, |cut| start + cut)])
}

/// Large files are named by their SHA-256, small ones by something shorter.
fn etag(play: &Play, name: &str) -> String {
    match is_large(name) {
        true => claimed(play, name),
        false => format!("small{}", name.len()),
    }
}

fn is_large(name: &str) -> bool {
    files::is_weights(Path::new(name)) || files::is_pickle(Path::new(name))
}

fn claimed(play: &Play, name: &str) -> String {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(file.path(), &play.files[name]).expect("written");
    play.claimed.get(name).cloned().unwrap_or_else(|| digest::sha256(file.path()).expect("readable"))
}

fn listing(play: &Play) -> serde_json::Value {
    let siblings = play.files.iter().map(|(name, content)| match is_large(name) {
        true => serde_json::json!({"rfilename": name, "size": play.lengths.unwrap_or(content.len()), "lfs": {"sha256": claimed(play, name)}}),
        false => serde_json::json!({"rfilename": name, "size": content.len()}),
    });
    serde_json::json!({"sha": COMMIT, "siblings": siblings.collect::<Vec<_>>()})
}

/// A model of three files that are served and two that are not.
fn model() -> Play {
    let weights = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    let files = [
        ("config.json", b"{}".to_vec()),
        ("tokenizer.json", b"{ }".to_vec()),
        ("model.safetensors", weights),
        ("pytorch_model.bin", b"pickle".to_vec()),
        ("modeling.py", b"code".to_vec()),
    ];
    Play { files: files.into(), ..Play::default() }
}

struct Scene {
    server: Server,
    root: tempfile::TempDir,
}

impl Scene {
    fn new(play: Play) -> Scene {
        Scene { server: Server::start(play), root: tempfile::tempdir().expect("a temporary folder") }
    }

    fn cache(&self) -> Cache {
        Cache { root: self.root.path().join("cache"), hub: self.root.path().join("hub") }
    }

    /// A client with the endpoint and `variables` in its environment. It tries everything once.
    fn hub(&self, variables: &[(&str, &str)]) -> Hub {
        let endpoint = ("HF_ENDPOINT", self.server.address.as_str());
        let environment = Environment::from_pairs([endpoint].iter().chain(variables).copied());
        Hub { retries: 0, ..Hub::from_environment(&environment, &self.cache()) }
    }

    fn fetch(&self) -> Result<PathBuf, String> {
        self.hub(&[]).fetch("org/name", "main", &[]).map_err(|error| format!("{error:#}"))
    }
}

#[test]
fn a_model_is_fetched_whole_and_only_once() {
    let scene = Scene::new(model());
    let folder = scene.fetch().expect("fetched");
    assert_eq!(folder, scene.cache().hub_folder("org/name").join("snapshots").join(COMMIT));
    assert_eq!(scene.cache().snapshot("org/name", "main"), Some(folder.clone()), "`resolve` finds it");
    let mut names: Vec<_> =
        fs::read_dir(&folder).expect("readable").map(|entry| entry.expect("readable").file_name()).collect();
    names.sort();
    assert_eq!(names, ["config.json", "model.safetensors", "tokenizer.json"]);
    let weights = fs::read(folder.join("model.safetensors")).expect("readable");
    assert_eq!(weights, model().files["model.safetensors"]);
    assert_eq!(scene.server.seen().len(), 3);
    assert_eq!(scene.fetch(), Ok(folder));
    assert_eq!(scene.server.seen(), Vec::<String>::new(), "the second time there is nothing to fetch");
}

#[test]
fn a_broken_download_goes_on_where_it_ended() {
    let scene = Scene::new(Play { cuts: vec![70_000], ..model() });
    let error = scene.fetch().expect_err("cut off");
    assert!(error.contains("model.safetensors: run the command again"), "{error}");
    assert_eq!(scene.cache().snapshot("org/name", "main"), None, "nothing appears in part");
    let folder = scene.fetch().expect("the rest is fetched");
    let seen: Vec<_> = scene.server.seen().into_iter().filter(|request| request.starts_with("model.")).collect();
    assert_eq!(seen, ["model.safetensors bytes=0-", "model.safetensors bytes=70000-"]);
    let weights = fs::read(folder.join("model.safetensors")).expect("readable");
    assert_eq!(weights, model().files["model.safetensors"]);
}

#[test]
fn a_cut_is_retried_within_one_run() {
    let scene = Scene::new(Play { cuts: vec![10], ..model() });
    let hub = Hub { retries: 2, ..scene.hub(&[]) };
    let folder = hub.fetch("org/name", "main", &[]).expect("fetched in spite of a cut");
    assert_eq!(fs::read(folder.join("model.safetensors")).expect("readable"), model().files["model.safetensors"]);
}

#[test]
fn a_wrong_digest_is_refused_and_forgotten() {
    let wrong = "ab".repeat(32);
    let scene = Scene::new(Play { claimed: [("model.safetensors", wrong.clone())].into(), ..model() });
    let error = scene.fetch().expect_err("the content is another");
    assert!(error.contains("model.safetensors is not what the hub says it is") && error.contains(&wrong), "{error}");
    assert_eq!(scene.cache().snapshot("org/name", "main"), None);
    scene.server.seen();
    scene.server.play.lock().expect("no panic").claimed.clear();
    scene.fetch().expect("the next time it is right");
    let expected = ["model.safetensors bytes=0-", "tokenizer.json bytes=0-"];
    assert_eq!(scene.server.seen(), expected, "the file that was right is not fetched again");
}

#[test]
fn a_part_that_is_already_whole_does_not_block() {
    let scene = Scene::new(model());
    let name = Repo::model("org/name".into()).folder_name();
    let contents = scene.cache().hub.join(".plimsoll-staging").join(name).join("files").join(COMMIT);
    fs::create_dir_all(&contents).expect("a folder");
    let play = model();
    fs::write(contents.join(".model.safetensors.part"), &play.files["model.safetensors"]).expect("written");
    fs::write(contents.join(".config.json.part"), "{").expect("written");
    let folder = scene.fetch().expect("both are fetched again");
    assert_eq!(fs::read(folder.join("config.json")).expect("readable"), b"{}");
    assert!(scene.server.seen().contains(&"config.json bytes=0-".to_owned()));
}

#[test]
fn what_a_server_says_in_headers_is_no_path() {
    let evil = Some(("../../../../evil", "../../../../evil-commit"));
    let scene = Scene::new(Play { headers: evil, ..model() });
    // A server that cannot be believed, and files that are what its listing says.
    scene.fetch().expect("fetched");
    let mut pending = vec![scene.root.path().to_owned()];
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(folder).expect("readable") {
            let path = entry.expect("readable").path();
            assert!(!path.display().to_string().contains("evil"), "{}", path.display());
            if path.is_dir() {
                pending.push(path);
            }
        }
    }
}

#[test]
fn no_more_is_taken_than_the_listing_says() {
    let scene = Scene::new(Play { lengths: Some(5), ..model() });
    let error = scene.fetch().expect_err("it is longer");
    assert!(error.contains("it has 6 bytes, not 5"), "{error}");
}

#[test]
fn another_clients_half_snapshot_is_completed() {
    let scene = Scene::new(model());
    let snapshot = scene.cache().hub_folder("org/name").join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).expect("a folder");
    fs::write(snapshot.join("tokenizer.json"), "{ }").expect("written");
    assert_eq!(scene.fetch(), Ok(snapshot.clone()));
    assert!(snapshot.join("model.safetensors").is_file());
}

#[test]
fn offline_nothing_is_asked() {
    let scene = Scene::new(model());
    let offline = |scene: &Scene| scene.hub(&[("HF_HUB_OFFLINE", "1")]).fetch("org/name", "main", &[]);
    let error = offline(&scene).expect_err("nothing was fetched").to_string();
    assert!(error.contains("HF_HUB_OFFLINE is set, and org/name at main is not in"), "{error}");
    let folder = scene.fetch().expect("fetched");
    scene.server.seen();
    assert_eq!(offline(&scene).expect("it is there"), folder);
    assert_eq!(scene.server.seen(), Vec::<String>::new());
}

#[test]
fn a_token_opens_what_is_private() {
    let scene = Scene::new(Play { token: Some("secret"), ..model() });
    let error = scene.fetch().expect_err("no token");
    assert!(error.contains("401") && error.contains("HF_TOKEN") && !error.contains("secret"), "{error}");
    scene.hub(&[("HF_TOKEN", "secret")]).fetch("org/name", "main", &[]).expect("with the token");
}

#[test]
fn an_absent_repository_and_an_absent_hub_are_told_apart() {
    let scene = Scene::new(model());
    let error = format!("{:#}", scene.hub(&[]).fetch("org/other", "main", &[]).expect_err("absent"));
    assert!(error.contains("does not show org/other at main (404"), "{error}");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let nobody = format!("http://{}", listener.local_addr().expect("bound"));
    drop(listener);
    let hub = Hub { endpoint: Some(nobody), ..scene.hub(&[]) };
    let error = format!("{:#}", hub.fetch("org/name", "main", &[]).expect_err("nobody listens"));
    assert!(error.contains("the hub cannot be reached for org/name"), "{error}");
}

#[test]
fn files_are_chosen() {
    let check = |names: &[&str], weights: &[&str], expected: Result<&[&str], &str>| {
        let listed = names.iter().map(|name| Listed { name: (*name).into(), size: None, lfs: None }).collect();
        let weights: Vec<_> = weights.iter().map(|name| (*name).to_owned()).collect();
        let chosen = choose("org/name", listed, &weights);
        match (chosen, expected) {
            (Ok(chosen), Ok(expected)) => {
                assert_eq!(chosen.iter().map(|file| file.name.as_str()).collect::<Vec<_>>(), expected);
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (chosen, expected) => panic!("{chosen:?} instead of {expected:?}"),
        }
    };
    check(
        &["config.json", "a.safetensors", "b.safetensors", "a.gguf"],
        &[],
        Ok(&["config.json", "a.safetensors", "b.safetensors"]),
    );
    check(&["config.json", "a.gguf"], &[], Ok(&["config.json", "a.gguf"]));
    check(&["config.json", "a.gguf", "b.gguf"], &[], Err("choose with --weights one of a.gguf, b.gguf"));
    check(&["config.json", "a.gguf", "b.gguf"], &["b.gguf"], Ok(&["config.json", "b.gguf"]));
    check(&["a.safetensors"], &["c.gguf"], Err("no weights called 'c.gguf': there are a.safetensors"));
    check(&["config.json", "pytorch_model.bin"], &[], Err("pickle"));
    check(&["config.json", "1_Dense/model.safetensors"], &[], Err("no weights"));
    check(&["../../x.safetensors", "/x.safetensors"], &[], Err("no weights"));
}
