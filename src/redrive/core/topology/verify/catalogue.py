"""Every kind of finding: what it is called, what to do about it, and where the rule comes from.

The page `docs/reference/losses.md` is generated from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_DLX: Final = "RabbitMQ documentation, dead letter exchanges"
_QUORUM: Final = "RabbitMQ documentation, quorum queues"
_POLICIES: Final = "RabbitMQ documentation, policies"
_TTL: Final = "RabbitMQ documentation, time-to-live"
_LENGTH: Final = "RabbitMQ documentation, queue length limit"
_MEASURED: Final = "measured on RabbitMQ 3.10.8"
_TESTED: Final = "reproduced on a real broker by tests/rabbitmq/test_losses.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of finding. `story`: what happens, told without names."""

    title: str
    story: str
    remedy: str
    source: str


CATALOGUE: Final[Mapping[str, Kind]] = {
    "L1": Kind(
        title="Dropped at the delivery limit",
        story="A quorum queue has a delivery limit (20 unless told otherwise from 4.0 on) and no dead-letter "
        "exchange. A "
        "message whose consumer dies or hands it back that often is removed.",
        remedy="Give the queue a dead-letter exchange, or set x-delivery-limit to -1 (4.0 and later) and count "
        "attempts in "
        "the consumer.",
        source=f"{_QUORUM}, poison message handling; {_TESTED}",
    ),
    "L2": Kind(
        title="The dead-letter exchange does not exist",
        story="The broker does not check the name. What dies in the queue is removed without a trace, or "
        "(at-least-once) "
        "kept where no message count shows it.",
        remedy="Declare the exchange, or correct the name.",
        source=f"{_DLX}; {_TESTED}",
    ),
    "L3": Kind(
        title="No queue behind the dead-letter exchange",
        story="No binding matches the key that dead letters carry. They are removed without a trace, or "
        "(at-least-once) "
        "kept where no message count shows them.",
        remedy="Bind a queue with that key, set x-dead-letter-routing-key, or give the exchange an alternate exchange.",
        source=f"{_DLX}; {_TESTED}",
    ),
    "L4": Kind(
        title="Dead-lettering without a confirm",
        story="A quorum queue dead-letters at most once: the message is removed before its target has it, and "
        "is gone when "
        "the target refuses it, is down, or the broker is killed.",
        remedy="Set x-dead-letter-strategy to at-least-once and x-overflow to reject-publish.",
        source=f"{_QUORUM}, at-least-once dead lettering; {_MEASURED}",
    ),
    "L5": Kind(
        title="At-least-once dead-lettering that is none",
        story="At-least-once needs a quorum queue, an overflow of reject-publish in force, a dead-letter exchange, and "
        "RabbitMQ 3.10. Without one of them the broker dead-letters at most once and says so in a log line at best.",
        remedy="Set x-overflow to reject-publish; look for a policy that says drop-head (on a quorum queue the "
        "policy wins).",
        source=f"{_QUORUM}, activating at-least-once dead lettering; {_MEASURED}",
    ),
    "L6": Kind(
        title="A classic queue dead-letters",
        story="Dead-lettering of a classic queue carries no confirm. A broker that is killed under steady "
        "traffic loses what "
        "went this way in the last seconds.",
        remedy="Make it a quorum queue with at-least-once dead-lettering, or let the consumer publish the copy with a "
        "confirm before it acknowledges.",
        source=f"{_MEASURED}: kill -9 at 500 messages per second lost 3 495 of 3 995",
    ),
    "L7": Kind(
        title="A full queue drops the oldest",
        story="A queue with a maximum length and drop-head removes the oldest message for each new one: of a "
        "queue of dead "
        "letters it is lost, from a waiting queue it goes on before its time.",
        remedy="Take the limit away, or use reject-publish with publishers that wait for confirms.",
        source=f"{_LENGTH}; {_TESTED}",
    ),
    "L8": Kind(
        title="A queue that expires with its messages",
        story="A queue with x-expires that nobody uses for so long is deleted with everything in it. Nothing is "
        "dead-lettered, and publishing to it does not count as use.",
        remedy="Take x-expires away. If it must stay: longer than the longest wait, and declare the queue again "
        "before each "
        "use.",
        source=f"{_TTL}, queue TTL; {_TESTED}",
    ),
    "L9": Kind(
        title="A cycle without a rejection",
        story="A message that comes a second time to a queue by expiry, overflow or delivery limit alone is "
        "taken for a "
        "loop: it is dropped (one log line per cycle), or stays stuck in an at-least-once queue.",
        remedy="Break the cycle, or let every round go through a consumer that rejects or publishes anew.",
        source=f"{_DLX}, automatic dead-lettering cycles; {_TESTED}",
    ),
    "L10": Kind(
        title="Published again with x-death",
        story="Brokers before 4.0 take an x-death header of a client for their own. A copy published with it "
        "into a chain of "
        "delays looks like a loop and is dropped.",
        remedy="Remove x-death from what is published again, and count attempts in a header of your own.",
        source=_MEASURED,
    ),
    "L11": Kind(
        title="A policy hides the one with the dead-letter exchange",
        story="Only one ordinary policy applies to a queue. The one in force has no dead-letter exchange; the "
        "one that has "
        "is weaker, or holds a key this type of queue does not know, and then does not apply at all.",
        remedy="Put the settings into one policy, or set x-dead-letter-exchange as an argument of the queue.",
        source=f"{_POLICIES}, combining policy definitions",
    ),
    "L12": Kind(
        title="Waits for another time than intended",
        story="Of an argument, a policy and an operator policy the smallest time to live counts, so a policy "
        "can cut a wait "
        "short.",
        remedy="Exclude the waiting queues from the policy, or give them the time you mean.",
        source=f"{_TTL}; {_MEASURED}",
    ),
    "L13": Kind(
        title="Different waits in one queue",
        story="Messages expire at the head of a queue only. Behind one that waits an hour, one that waits five "
        "seconds comes "
        "an hour late; one without expiration never leaves.",
        remedy="One queue per delay, with a queue TTL (x-message-ttl) and no expiration on messages.",
        source=f"{_TTL}, caveats; {_MEASURED}: one second behind ten came after 10.013 s",
    ),
    "L14": Kind(
        title="Messages that do not survive a restart",
        story="A message published without delivery mode 2 is lost when its broker restarts, also from a "
        "durable queue, and "
        "keeps that mode when it is dead-lettered.",
        remedy="Publish with delivery mode 2 (persistent), also copies.",
        source="RabbitMQ documentation, queues, durability",
    ),
    "L15": Kind(
        title="Dead letters pending at a change",
        story="Dead letters an at-least-once queue still has to hand on are deleted when its strategy or "
        "overflow changes "
        "back, or when the policy that says so goes.",
        remedy="Change it when messages_dlx of the queue is 0; set strategy and overflow as arguments of the queue.",
        source=f"{_QUORUM}, at-least-once dead lettering, limitations",
    ),
    "L16": Kind(
        title="Innocent messages reach the limit together",
        story="When a consumer dies, everything it had prefetched counts as delivered. One message that kills "
        "its consumer "
        "takes its neighbours to the delivery limit with it.",
        remedy="Set x-delivery-limit to -1 and count in the consumer, or use a prefetch of 1.",
        source=f"{_QUORUM}, poison message handling; {_MEASURED}",
    ),
    "L17": Kind(
        title="Published without confirm and mandatory",
        story="Without a confirm a publisher does not learn that its message was not stored; without mandatory "
        "it does not "
        "learn that no queue took it.",
        remedy="Use publisher confirms and mandatory, and treat a return as a failure.",
        source=f"RabbitMQ documentation, publisher confirms; {_MEASURED}",
    ),
    "L18": Kind(
        title="Headers that outgrow a frame",
        story="Headers must fit one frame (131 072 bytes). A history or traceback that grows with each retry "
        "ends in a closed "
        "connection, again at each attempt: the message is stuck.",
        remedy="Bound what is added to headers, for example to 16 kB.",
        source=_MEASURED,
    ),
    "L19": Kind(
        title="Handing back never reaches the limit",
        story="From RabbitMQ 4.3 on basic.nack with requeue does not count towards the delivery limit. A "
        "message handed back "
        "this way comes again for ever, without a pause.",
        remedy="Count attempts in the consumer, and give up or delay there.",
        source=f"{_QUORUM}, 4.3 release notes",
    ),
    "L20": Kind(
        title="A lease that cannot be renewed",
        story="Declaring a quorum queue again does not renew its x-expires: it vanishes with its messages while "
        "in use.",
        remedy="Take x-expires away from quorum queues nobody consumes.",
        source=_MEASURED,
    ),
    "L21": Kind(
        title="A rejected message is dropped",
        story="The queue has no dead-letter exchange: what its consumer rejects without requeue is removed.",
        remedy="Give the queue a dead-letter exchange.",
        source=_DLX,
    ),
    "L22": Kind(
        title="An expired message is dropped",
        story="The queue has a message TTL and no dead-letter exchange: what stays too long is removed unseen.",
        remedy="Give the queue a dead-letter exchange, or take the TTL away.",
        source=_TTL,
    ),
    "L23": Kind(
        title="A retry comes to consumers that had succeeded",
        story="After its wait the message returns through an exchange other queues are bound to, or may be: "
        "each of them gets "
        "it again with every retry of one.",
        remedy="Return through the default exchange with the name of the one queue; else every consumer must be "
        "idempotent.",
        source=_DLX,
    ),
    "L24": Kind(
        title="A loop at full speed",
        story="What a consumer rejects comes back at once, for no queue on the way makes it wait. The broker "
        "never cuts a loop "
        "with a rejection in it.",
        remedy="Let the way back lead through a queue with a TTL, and give up after a number of attempts.",
        source=f"{_DLX}; {_MEASURED}",
    ),
    "L25": Kind(
        title="Two policies of the same priority",
        story="Which of them applies is up to the broker, and may differ after a restart.",
        remedy="Give them different priorities, or patterns that do not overlap.",
        source=_POLICIES,
    ),
    "L26": Kind(
        title="A target that can be full",
        story="A queue with a maximum length and reject-publish refuses dead letters when it is full. An "
        "at-most-once source "
        "then loses them; an at-least-once source keeps them, unseen, and tries for ever.",
        remedy="Take the limit away from queues that get dead letters, or watch their length.",
        source=f"{_LENGTH}; {_MEASURED}",
    ),
    "L27": Kind(
        title="Dead-letter settings without an exchange",
        story="A dead-letter routing key or strategy without a dead-letter exchange does nothing; as arguments "
        "the broker "
        "refuses the routing key.",
        remedy="Set x-dead-letter-exchange as well.",
        source=_DLX,
    ),
    "L28": Kind(
        title="Cannot be decided",
        story="Where a message goes depends on its headers or on an exchange type nobody but its plugin knows.",
        remedy="Give the exchange an alternate exchange with a queue, so that nothing can be lost there.",
        source="RabbitMQ documentation, exchanges",
    ),
    "L29": Kind(
        title="The broker refuses or ignores a setting",
        story="The queue's type does not know this argument, or its value is none: the declaration fails, or "
        "the value has no "
        "effect.",
        remedy="Take the argument away, or change the queue's type.",
        source=f"{_MEASURED}: 406 PRECONDITION_FAILED",
    ),
    "L30": Kind(
        title="Gone after a restart",
        story="A queue or exchange that is not durable is gone when the broker restarts; one with auto-delete "
        "when its last "
        "consumer or binding goes.",
        remedy="Declare it durable and without auto-delete.",
        source="RabbitMQ documentation, queues, durability",
    ),
    "L31": Kind(
        title="Definitions that do not hold together",
        story="A binding leads from or to something that is not there, or a policy has a pattern that is none. "
        "On import the "
        "broker passes over it without a word.",
        remedy="Correct the name or the pattern.",
        source=_MEASURED,
    ),
    "L32": Kind(
        title="A retry or dead letter of redrive has no way",
        story="The copy is published with confirm and mandatory, so nothing is lost: the message stays with its "
        "consumer and "
        "is tried again, for ever.",
        remedy="Declare what the wiring names: redrive topology apply.",
        source="redrive, the wiring of consumer queues",
    ),
    "L33": Kind(
        title="An exchange that leads nowhere",
        story="Messages published to it without mandatory are confirmed and dropped.",
        remedy="Bind a queue, give it an alternate exchange that exists, and publish with mandatory.",
        source=f"RabbitMQ documentation, alternate exchanges; {_MEASURED}",
    ),
    "L34": Kind(
        title="A retry without an end of its own",
        story="The broker sends the message round again as often as it is rejected. Only the consumer can end it.",
        remedy="Count attempts in the consumer, in a header or store of your own, and give up after a number of them.",
        source=_DLX,
    ),
    "L35": Kind(
        title="Nobody reads it",
        story="Messages are routed to the queue, nobody is said to consume it, and nothing takes them out again.",
        remedy="Start its consumer, or unbind it.",
        source="who consumes, as it was told",
    ),
    "L36": Kind(
        title="A suppression of nothing",
        story="No finding is covered by it any more.",
        remedy="Remove it.",
        source="the suppressions, as they were given",
    ),
}
