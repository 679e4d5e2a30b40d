//! Chains of the node's packet filter that other components look for (`makeIPTablesUtilChains`).
//!
//! What: the chain `KUBE-IPTABLES-HINT`, by which one tells whether the node uses the legacy or the
//! nftables flavour of iptables, and a rule against packets from elsewhere to loopback addresses,
//! which kube-proxy has in the same words. Who flushes the tables gets them back within a minute.
//! Not here: any rule that the kubelet itself needs. There is none.

use std::future::Future;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::{sleep, timeout};

const HINT: &str = "KUBE-IPTABLES-HINT";
const FIREWALL: &str = "KUBE-FIREWALL";
/// Gone together with everything else when somebody flushes a table.
const CANARY: &str = "KUBE-KUBELET-CANARY";

/// How often it is looked whether the canaries are still there.
const PERIOD: Duration = Duration::from_secs(60);
/// How long a program waits for others that change the tables, in seconds, and for how long it is
/// waited for itself.
const WAIT_SECONDS: &str = "5";
const PATIENCE: Duration = Duration::from_secs(30);

/// What a program that changes tables made of its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is so, or was done.
    Yes,
    /// It is not so: there is no such chain or rule, or there is one of that name already.
    No,
    /// It could not tell; in its own words.
    Unknown(String),
}

/// One family's tables, changed by the arguments of iptables.
pub(crate) trait PacketFilter: Send + Sync + 'static {
    /// Addresses are 32 bits long.
    fn is_ipv4(&self) -> bool;

    /// Does one thing.
    fn run(&self, args: Vec<&str>) -> impl Future<Output = Verdict> + Send;
}

/// The programs `iptables` and `ip6tables` of the node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Program {
    Iptables,
    Ip6tables,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Ip6tables => "ip6tables",
        }
    }
}

impl PacketFilter for Program {
    fn is_ipv4(&self) -> bool {
        matches!(self, Self::Iptables)
    }

    async fn run(&self, args: Vec<&str>) -> Verdict {
        let mut command = Command::new(self.name());
        command.args(["-w", WAIT_SECONDS]).args(args).stdin(Stdio::null()).kill_on_drop(true);
        let output = timeout(PATIENCE, command.output()).await;
        match output.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(output) if output.status.success() => Verdict::Yes,
            Ok(output) if output.status.code() == Some(1) => Verdict::No,
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                Verdict::Unknown(format!("{}: {}", output.status, said.trim()))
            }
            Err(error) => Verdict::Unknown(error.to_string()),
        }
    }
}

/// Keeps the chains of both families. Never returns where there is something to keep.
pub(crate) async fn keep_iptables_chains() {
    tokio::join!(keep(&Program::Iptables), keep(&Program::Ip6tables));
}

async fn keep(filter: &impl PacketFilter) {
    let protocol = if filter.is_ipv4() { "IPv4" } else { "IPv6" };
    // On a node that knows nftables alone there is nobody either who looks for the chains.
    if filter.run(vec!["-t", "nat", "-S", "POSTROUTING"]).await != Verdict::Yes {
        tracing::info!(protocol, "No iptables support; not creating the KUBE-IPTABLES-HINT chain");
        return;
    }
    match ensure_chains(filter).await {
        Ok(()) => tracing::info!(protocol, "Initialized iptables rules"),
        Err(error) => tracing::warn!(protocol, error, "Failed to initialize iptables rules"),
    }
    loop {
        sleep(PERIOD).await;
        if has_canaries(filter).await {
            continue;
        }
        tracing::info!(protocol, "Somebody flushed the iptables rules, making them again");
        if let Err(error) = ensure_chains(filter).await {
            tracing::warn!(protocol, error, "Failed to make the iptables rules again");
        }
    }
}

/// The tables in which something could have gone. Where nobody can tell, nothing has.
async fn has_canaries(filter: &impl PacketFilter) -> bool {
    let tables: &[&str] = if filter.is_ipv4() { &["mangle", "filter"] } else { &["mangle"] };
    for table in tables {
        if filter.run(vec!["-t", table, "-S", CANARY]).await == Verdict::No {
            return false;
        }
    }
    true
}

async fn ensure_chains(filter: &impl PacketFilter) -> Result<(), String> {
    ensure_chain(filter, "mangle", HINT).await?;
    if filter.is_ipv4() {
        ensure_chain(filter, "filter", FIREWALL).await?;
        for chain in ["OUTPUT", "INPUT"] {
            ensure_rule(filter, "-I", chain, &["-j", FIREWALL]).await?;
        }
        let martians = [
            "-m",
            "comment",
            "--comment",
            "block incoming localnet connections",
            "--dst",
            "127.0.0.0/8",
            "!",
            "--src",
            "127.0.0.0/8",
            "-m",
            "conntrack",
            "!",
            "--ctstate",
            "RELATED,ESTABLISHED,DNAT",
            "-j",
            "DROP",
        ];
        ensure_rule(filter, "-A", FIREWALL, &martians).await?;
    }
    // The last: while they are there, so is the rest.
    for table in ["mangle", "nat", "filter"] {
        ensure_chain(filter, table, CANARY).await?;
    }
    Ok(())
}

async fn ensure_chain(filter: &impl PacketFilter, table: &str, chain: &str) -> Result<(), String> {
    match filter.run(vec!["-t", table, "-N", chain]).await {
        Verdict::Yes | Verdict::No => Ok(()),
        Verdict::Unknown(error) => Err(format!("chain {chain} in table {table}: {error}")),
    }
}

/// In the table `filter`; `how` is where in the chain.
async fn ensure_rule(
    filter: &impl PacketFilter,
    how: &str,
    chain: &str,
    rule: &[&str],
) -> Result<(), String> {
    let with = |action| [&["-t", "filter", action, chain], rule].concat();
    let failed = |why: &str| Err(format!("rule {} in chain {chain}: {why}", rule.join(" ")));
    match filter.run(with("-C")).await {
        Verdict::Yes => return Ok(()),
        Verdict::No => {}
        Verdict::Unknown(error) => return failed(&error),
    }
    match filter.run(with(how)).await {
        Verdict::Yes => Ok(()),
        Verdict::No => failed("it cannot be made"),
        Verdict::Unknown(error) => failed(&error),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Chains with their rules, by table and name.
    #[derive(Default)]
    struct Tables {
        chains: BTreeMap<(String, String), Vec<String>>,
        is_busy: bool,
        asked: u32,
    }

    #[derive(Clone)]
    struct Fake {
        ipv4: bool,
        tables: Arc<Mutex<Tables>>,
    }

    impl Fake {
        fn new(ipv4: bool) -> Self {
            let fake = Self { ipv4, tables: Arc::default() };
            fake.flush();
            fake
        }

        fn flush(&self) {
            let own = [
                ("filter", "INPUT"),
                ("filter", "OUTPUT"),
                ("mangle", "OUTPUT"),
                ("nat", "POSTROUTING"),
            ];
            let chains = own.map(|(table, chain)| ((table.to_owned(), chain.to_owned()), vec![]));
            self.tables.lock().unwrap().chains = chains.into();
        }

        /// Each chain that is not the kernel's, and each rule.
        fn told(&self) -> Vec<String> {
            let tables = self.tables.lock().unwrap();
            let told = tables.chains.iter().flat_map(|((table, chain), rules)| {
                let name = format!("{table} {chain}");
                let chain = chain.starts_with("KUBE").then(|| name.clone());
                let rules = rules.iter().map(move |rule| format!("{name} {rule}"));
                chain.into_iter().chain(rules)
            });
            told.collect()
        }

        fn asked(&self) -> u32 {
            std::mem::take(&mut self.tables.lock().unwrap().asked)
        }
    }

    impl PacketFilter for Fake {
        fn is_ipv4(&self) -> bool {
            self.ipv4
        }

        async fn run(&self, args: Vec<&str>) -> Verdict {
            let mut tables = self.tables.lock().unwrap();
            tables.asked += 1;
            if tables.is_busy {
                return Verdict::Unknown("exit status: 4: resource problem".to_owned());
            }
            let ["-t", table, action, chain, rule @ ..] = args.as_slice() else {
                return Verdict::Unknown(format!("exit status: 2: {args:?}"));
            };
            let (key, rule) = (((*table).to_owned(), (*chain).to_owned()), rule.join(" "));
            let found = tables.chains.get_mut(&key);
            let done = match (*action, found) {
                ("-N", None) => {
                    tables.chains.insert(key, vec![]);
                    true
                }
                ("-S", found) => found.is_some(),
                ("-C", Some(rules)) => rules.contains(&rule),
                ("-A", Some(rules)) => {
                    rules.push(rule);
                    true
                }
                ("-I", Some(rules)) => {
                    rules.insert(0, rule);
                    true
                }
                _ => false,
            };
            if done { Verdict::Yes } else { Verdict::No }
        }
    }

    const MARTIANS: &str = "filter KUBE-FIREWALL -m comment --comment block incoming localnet connections --dst \
                            127.0.0.0/8 ! --src 127.0.0.0/8 -m conntrack ! --ctstate \
                            RELATED,ESTABLISHED,DNAT -j DROP";

    #[tokio::test(start_paused = true)]
    async fn what_somebody_flushes_is_made_again_and_nothing_twice() {
        for ipv4 in [true, false] {
            let fake = Fake::new(ipv4);
            let mut expected = vec!["filter KUBE-KUBELET-CANARY"];
            if ipv4 {
                expected = vec![
                    "filter INPUT -j KUBE-FIREWALL",
                    "filter KUBE-FIREWALL",
                    MARTIANS,
                    "filter KUBE-KUBELET-CANARY",
                    "filter OUTPUT -j KUBE-FIREWALL",
                ];
            }
            expected.extend([
                "mangle KUBE-IPTABLES-HINT",
                "mangle KUBE-KUBELET-CANARY",
                "nat KUBE-KUBELET-CANARY",
            ]);
            let kept = fake.clone();
            let task = tokio::spawn(async move { keep(&kept).await });
            sleep(Duration::from_secs(30)).await;
            assert_eq!(fake.told(), expected);
            fake.asked();
            sleep(Duration::from_secs(600)).await;
            assert_eq!(fake.told(), expected);
            assert_eq!(fake.asked(), if ipv4 { 20 } else { 10 }, "a look is cheap");
            fake.flush();
            sleep(Duration::from_secs(61)).await;
            assert_eq!(fake.told(), expected);
            // One that cannot tell has seen nothing go.
            fake.tables.lock().unwrap().is_busy = true;
            sleep(Duration::from_secs(61)).await;
            fake.tables.lock().unwrap().is_busy = false;
            sleep(Duration::from_secs(61)).await;
            assert_eq!(fake.told(), expected);
            task.abort();
            // The next kubelet finds it as it is.
            let kept = fake.clone();
            let task = tokio::spawn(async move { keep(&kept).await });
            sleep(Duration::from_secs(30)).await;
            assert_eq!(fake.told(), expected);
            task.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn where_there_is_no_iptables_nothing_is_tried() {
        let fake = Fake::new(true);
        fake.tables.lock().unwrap().is_busy = true;
        keep(&fake).await;
        assert_eq!(fake.asked(), 1);
    }
}
