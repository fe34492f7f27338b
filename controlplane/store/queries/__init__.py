"""The queries of ``controlplane.store.port``: one set for every database."""

from controlplane.store import port
from controlplane.store.queries.decisions import IntentQueries, ModelQueries, SettingQueries
from controlplane.store.queries.enrolment import EnrolmentQueries
from controlplane.store.queries.identity import (
    KeyQueries,
    PeopleQueries,
    ScopeQueries,
    SecretQueries,
)
from controlplane.store.queries.lease import LeadershipQueries
from controlplane.store.queries.records import AuditQueries, EventQueries, IdempotencyQueries
from controlplane.store.queries.sql import Sql
from controlplane.store.queries.usage import UsageQueries


class Queries:
    """``port.Transaction`` on one connection, for the length of one transaction."""

    def __init__(self, sql: Sql) -> None:
        self.leadership: port.Leadership = LeadershipQueries(sql)
        self.secrets: port.Secrets = SecretQueries(sql)
        self.keys: port.Keys = KeyQueries(sql)
        self.scopes: port.Scopes = ScopeQueries(sql)
        self.people: port.People = PeopleQueries(sql)
        self.identities: port.Identities = EnrolmentQueries(sql)
        self.models: port.Models = ModelQueries(sql)
        self.settings: port.SettingsTable = SettingQueries(sql)
        self.intents: port.Intents = IntentQueries(sql)
        self.audit: port.Audit = AuditQueries(sql)
        self.idempotency: port.Idempotency = IdempotencyQueries(sql)
        self.usage: port.Usage = UsageQueries(sql)
        self.events: port.Events = EventQueries(sql)
