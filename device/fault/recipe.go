package fault

import "time"

// Recipe is a named set of rules for tests of a driver: what goes wrong, and what a good driver does.
type Recipe struct {
	Name   string `json:"name"`
	Wrong  string `json:"wrong"`
	Driver string `json:"driver"`
	Rules  []Rule `json:"rules"`
}

// few is how many requests, accesses or events a recipe lets pass, so that the driver is at work when
// something goes wrong.
const few = 10

// Recipes returns all recipes, from what a driver meets first to what it meets least.
func Recipes() []Recipe {
	return []Recipe{
		{
			"slow-register", "every register access is answered after 200 ms",
			"waits for each answer; does not take the device for lost",
			[]Rule{{Kind: RegisterLate, DelayNS: int64(200 * time.Millisecond)}},
		}, {
			"command-refused", "one admin command in five ends with no-resources",
			"undoes what it had begun, returns the error, and works on; nothing is left over in vnic show functions",
			[]Rule{{Kind: CommandFail, Probability: 0.2}},
		}, {
			"lost-event", "every tenth event of a completion queue is lost",
			"polls now and then, so that the completions are found all the same",
			[]Rule{{Kind: EventLost, Event: "cq", Every: few}},
		}, {
			"late-event", "events of completion queues come 100 ms late",
			"neither overfills the queue meanwhile nor takes the peer for lost",
			[]Rule{{Kind: EventLate, Event: "cq", DelayNS: int64(100 * time.Millisecond)}},
		}, {
			"double-event", "every event comes twice",
			"looks, finds nothing, and arms again",
			[]Rule{{Kind: EventDuplicate}},
		}, {
			"slow-queue", "send queues are not looked at for two seconds",
			"waits, or gives up by a time of its own",
			[]Rule{{Kind: StuckQueue, ForNS: int64(2 * time.Second)}},
		}, {
			"qp-error", "the tenth work request completes with general-error, and its queue pair goes to ERR",
			"takes the flushed completions, makes the queue pair anew and connects again",
			[]Rule{{Kind: CQEError, Nth: few}},
		}, {
			"cq-overrun", "the tenth completion finds its queue full: EventCQError, and its queue pairs go to ERR",
			"makes a completion queue and queue pairs anew, and connects again; does not wait for completions",
			[]Rule{{Kind: CQOverrun, Nth: few}},
		}, {
			"bad-memory", "the tenth access to registered memory finds it gone",
			"fails that request alone, and makes its queue pair anew",
			[]Rule{{Kind: DMA, Nth: few}},
		}, {
			"bad-key", "the tenth request of a peer comes with a wrong key",
			"takes EventQPAccessErr, and accepts the peer again",
			[]Rule{{Kind: WrongKey, Nth: few}},
		}, {
			"port-flap", "the link goes down for 200 ms with every tenth work request, three times",
			"reports the port's state, keeps its queue pairs, and goes on when the link is back",
			[]Rule{{Kind: LinkFlap, Every: few, Limit: 3, DelayNS: int64(200 * time.Millisecond)}},
		}, {
			"function-reset", "the tenth work request resets the function: all its objects are gone",
			"starts again on the same stream, and tells its programs",
			[]Rule{{Kind: Reset, Nth: few}},
		}, {
			"function-fault", "the tenth work request stops the function with FaultMemory",
			"resets the function with ControlReset, then as after function-reset",
			[]Rule{{Kind: FunctionFault, Nth: few}},
		},
	}
}
