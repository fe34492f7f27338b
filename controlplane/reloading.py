"""What a term reads again on SIGHUP: the catalog's files, the cluster settings of the
settings file, the log level and the admin API's own token. What is faulty stays as it was.
"""

from collections.abc import Callable, Mapping

import gevent

from controlplane.clustersettings import FileValue, file_values
from controlplane.leadership.driver import Leadership
from controlplane.offhub import off_hub
from controlplane.planning.words import IN_DOUBT
from controlplane.services.auth import load_local_token
from controlplane.services.catalog import CatalogService
from controlplane.services.cluster_settings import ClusterSettings
from controlplane.services.errors import Refused
from llmgw.runtime.logs import Logger, set_level
from llmgw.runtime.settings import Loaded, SettingsError

log = Logger("llmgw.server")


class Reloading:
    """See the module. ``reread`` reads the settings file anew. Raises ``SettingsError`` if the
    token's file cannot be used."""

    def __init__(
        self,
        settings: Loaded,
        reread: Callable[[], Loaded],
        *,
        leadership: Leadership,
        cluster: ClusterSettings,
        catalog: CatalogService,
    ) -> None:
        self._state_dir = settings["state_dir"]
        self._reread = reread
        self._leadership = leadership
        self._cluster = cluster
        self._catalog = catalog
        self._due = False
        self.local_token = load_local_token(self._state_dir)
        """The digest of the token in the state directory."""

    def reload(self) -> None:
        """SIGHUP. While the lease is in doubt what rules the fleet is not read: it is once there
        is no doubt."""
        self._reload_token()
        if not self._leadership.sure:
            self._due = True
            log.warning("catalog and cluster settings are read later", why=IN_DOUBT)
            return
        file = self._reread_cluster()
        try:
            self._catalog.reload("SIGHUP")
        except Refused as error:
            self._due = not self._leadership.sure
            log.error("the catalog was not reloaded", why=error)
        if file is not None:
            # Once more: what the old catalog forbade the new one may allow.
            for fault in self._cluster.reread(file):
                log.error("a cluster setting of the file was refused, the value before stays", why=fault)

    def extended(self) -> None:
        """The lease was renewed: what had to wait is read."""
        if self._due and self._leadership.sure:
            self._due = False
            gevent.spawn(self.reload)

    def _reread_cluster(self) -> Mapping[str, FileValue] | None:
        """Take over the cluster settings of the file, so far as the catalog allows."""
        try:
            file = file_values(off_hub(self._reread))
        except SettingsError as error:
            log.error("the settings file was refused, the cluster settings stay", faults=error)
            return None
        self._cluster.reread(file)
        set_level(self._cluster.value("log.level"))  # also after a level that was for a while only
        return file

    def _reload_token(self) -> None:
        try:
            self.local_token = off_hub(load_local_token, self._state_dir)
        except SettingsError as error:
            log.error("the file of the admin API's own token was refused, the token in use stays", faults=error)
