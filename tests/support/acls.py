"""ACLs of a broker: its configuration, and rules that take effect before a test goes on."""

from __future__ import annotations

import time

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tailrace.testing import KafkaServer

__all__ = ["ACLS", "acl", "admin_of", "forbid"]

ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}
"""Configuration of a broker with ACLs, which allow everything of which no ACL exists."""
_EVERY_RULE = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)


def acl(of: tuple[ResourceType, str], operation: AclOperation, permission: AclPermissionType, kind=AclBinding):
    return kind(*of, ResourcePatternType.LITERAL, "User:*", "*", operation, permission)


def forbid(admin: AdminClient, rules: list[AclBinding]) -> None:
    """Create ACLs, and wait until the broker applies them, which may be after its response."""
    for done in admin.create_acls(rules).values():
        done.result(20)
    until = time.monotonic() + 30
    while not set(rules) <= set(admin.describe_acls(_EVERY_RULE).result(20)):
        assert time.monotonic() < until
        time.sleep(0.05)


def admin_of(server: KafkaServer) -> AdminClient:
    options = server.client_options
    return AdminClient(
        {
            "bootstrap.servers": options["bootstrap_servers"],
            "security.protocol": options["security_protocol"],
            "sasl.mechanism": options["sasl_mechanism"],
            "sasl.username": options["sasl_plain_username"],
            "sasl.password": options["sasl_plain_password"],
        }
    )
