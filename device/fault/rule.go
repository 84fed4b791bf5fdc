package fault

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Kind is a kind of fault.
type Kind string

// Kinds, each with the operation it applies to.
const (
	EventLost      Kind = "event-lost"      // event: it is not sent
	EventDuplicate Kind = "event-duplicate" // event: it is sent twice
	EventLate      Kind = "event-late"      // event: it is sent after Delay
	CommandFail    Kind = "command-fail"    // command: it ends with Status and does nothing
	CQEError       Kind = "cqe-error"       // work: it completes with Status
	CQOverrun      Kind = "cq-overrun"      // completion: its queue is taken for full
	RegisterLate   Kind = "register-late"   // register access: its answer is sent after Delay
	DMA            Kind = "dma"             // access: the memory behind a region is not there
	WrongKey       Kind = "wrong-key"       // key: a peer's key is treated as wrong
	Reset          Kind = "reset"           // work: the function is reset
	FunctionFault  Kind = "function-fault"  // work: the function stops with FaultMemory
	LinkFlap       Kind = "link-flap"       // work: the function's link goes down for Delay
	StuckQueue     Kind = "stuck-queue"     // state: the send queue is not looked at
	Starve         Kind = "starve"          // state: the function gets no credits
)

// Kinds returns all kinds.
func Kinds() []Kind {
	return []Kind{EventLost, EventDuplicate, EventLate, RegisterLate, CommandFail, CQEError, CQOverrun, DMA, WrongKey, Reset, FunctionFault, LinkFlap, StuckQueue, Starve}
}

// Rule says what fails, and when. Zero fields have no effect.
type Rule struct {
	Kind Kind `json:"kind"`

	// What it matches.
	QP      uint32 `json:"qp,omitempty"`
	CQ      uint32 `json:"cq,omitempty"`
	Opcode  string `json:"opcode,omitempty"`  // opcode of a work request, as "send"
	Command string `json:"command,omitempty"` // as "RegMR"
	Event   string `json:"event,omitempty"`   // "cq", "admin", or asynchronous as "QP-fatal"

	// Which of the matching operations fail: all, or those that every field here allows.
	Nth         uint64  `json:"nth,omitempty"`         // only this one, counted from 1
	Every       uint64  `json:"every,omitempty"`       // every n-th
	Probability float64 `json:"probability,omitempty"` // 0 to 1
	Seed        uint64  `json:"seed,omitempty"`
	Limit       uint64  `json:"limit,omitempty"`  // number of hits after which the rule is over
	ForNS       int64   `json:"for_ns,omitempty"` // duration from when it was added

	// What happens.
	Status  string `json:"status,omitempty"` // status of a command or a work request
	DelayNS int64  `json:"delay_ns,omitempty"`
}

// Operation is one operation of a function. Fields that do not apply are 0.
type Operation struct {
	QP, CQ  uint32
	Opcode  abi.Opcode
	Command abi.AdminOp
	Event   string
}

// uses says which optional fields a kind takes.
var uses = map[Kind]struct{ match, status, delay bool }{
	EventLate: {delay: true}, RegisterLate: {delay: true}, LinkFlap: {delay: true}, CommandFail: {status: true}, CQEError: {status: true},
}

// parsed is a rule with its names looked up.
type parsed struct {
	Rule
	opcode  abi.Opcode
	command abi.AdminOp
	status  uint32
}

// opcodes maps names to opcodes.
var opcodes = map[string]abi.Opcode{
	"write": abi.OpWrite, "write-imm": abi.OpWriteImm, "send": abi.OpSend, "send-imm": abi.OpSendImm, "send-inv": abi.OpSendInv, "read": abi.OpRead,
	"read-inv": abi.OpReadInv, "cmp-swap": abi.OpCmpSwap, "fetch-add": abi.OpFetchAdd, "masked-cmp-swap": abi.OpMaskedCmpSwap,
	"masked-fetch-add": abi.OpMaskedFetchAdd, "atomic-write": abi.OpAtomicWrite, "local-inv": abi.OpLocalInv, "bind-mw": abi.OpBindMW,
}

// parse checks a rule.
func (r Rule) parse() (p parsed, err error) {
	p.Rule = r
	if !slices.Contains(Kinds(), r.Kind) {
		return p, fmt.Errorf("unknown fault %q; use one of %s", r.Kind, list(Kinds()))
	}
	bad := func(field string, value any, why string) error {
		return fmt.Errorf("%s: %s %v: %s", r.Kind, field, value, why)
	}
	event := r.Kind == EventLost || r.Kind == EventDuplicate || r.Kind == EventLate
	work := r.Kind == CQEError || r.Kind == Reset || r.Kind == FunctionFault || r.Kind == LinkFlap
	state := r.Kind == StuckQueue || r.Kind == Starve
	switch {
	case r.Opcode != "" && !work:
		return p, bad("opcode", r.Opcode, "only faults of work requests have one")
	case r.Command != "" && r.Kind != CommandFail:
		return p, bad("command", r.Command, "only command-fail has one")
	case r.Event != "" && !event:
		return p, bad("event", r.Event, "only faults of events have one")
	case r.CQ != 0 && !event && r.Kind != CQOverrun:
		return p, bad("cq", r.CQ, "only faults of events and completion queues have one")
	case r.QP != 0 && !work && r.Kind != WrongKey && r.Kind != StuckQueue && !event:
		return p, bad("qp", r.QP, "name it for faults of work requests, keys, queues and events")
	case state && (r.Nth != 0 || r.Every != 0 || r.Probability != 0 || r.Limit != 0):
		return p, bad("nth, every, probability or limit of", r.Kind, "it holds all the time; bound it with for, or clear it")
	case r.Nth != 0 && r.Every != 0:
		return p, bad("nth and every", r.Nth, "give one of them")
	case r.Probability < 0 || r.Probability > 1:
		return p, bad("probability", r.Probability, "write 0 to 1, or a share as 1%")
	case r.ForNS < 0 || r.DelayNS < 0:
		return p, bad("for or delay", time.Duration(min(r.ForNS, r.DelayNS)), "it is negative")
	case r.DelayNS > 0 && !uses[r.Kind].delay:
		return p, bad("delay", time.Duration(r.DelayNS), "only event-late, register-late and link-flap have one")
	case time.Duration(r.DelayNS) > time.Minute:
		return p, bad("delay", time.Duration(r.DelayNS), "a minute is the most")
	case r.Status != "" && !uses[r.Kind].status:
		return p, bad("status", r.Status, "only command-fail and cqe-error have one")
	}
	return p, p.names()
}

// names looks names up.
func (p *parsed) names() error {
	var ok bool
	if p.Opcode != "" {
		if p.opcode, ok = opcodes[p.Opcode]; !ok {
			return fmt.Errorf("%s: unknown opcode %q; use one of %s", p.Kind, p.Opcode, names(opcodes))
		}
	}
	if p.Command != "" {
		if p.command, ok = find(p.Command, func(i int) (abi.AdminOp, string) { return abi.AdminOp(i), abi.AdminOp(i).String() }); !ok {
			return fmt.Errorf("%s: unknown command %q; write an admin command of docs/abi, such as RegMR", p.Kind, p.Command)
		}
	}
	if p.Event != "" && p.Event != "cq" && p.Event != "admin" && !slices.Contains(eventNames(), p.Event) {
		return fmt.Errorf("%s: unknown event %q; use one of cq, admin, %s", p.Kind, p.Event, strings.Join(eventNames(), ", "))
	}
	switch p.Kind {
	case CommandFail:
		p.status = uint32(abi.StatusNoResources)
		if p.Status == "" {
			break
		}
		s, ok := find(p.Status, func(i int) (abi.Status, string) { return abi.Status(i), name(abi.Status(i).String()) })
		if !ok || s == abi.StatusOK {
			return fmt.Errorf("%s: status %q cannot be injected; use one of %s", p.Kind, p.Status, strings.Join(statusNames(), ", "))
		}
		p.status = uint32(s)
	case CQEError:
		p.status = uint32(abi.WCGeneralErr)
		if p.Status == "" {
			break
		}
		s, ok := find(p.Status, func(i int) (abi.WCStatus, string) { return abi.WCStatus(i), name(abi.WCStatus(i).String()) })
		if !ok || s == abi.WCSuccess || s == abi.WCWRFlushErr {
			return fmt.Errorf("%s: status %q cannot be injected; use one of %s", p.Kind, p.Status, strings.Join(completionNames(), ", "))
		}
		p.status = uint32(s)
	}
	return nil
}

// matches reports whether the rule applies to an operation.
func (p *parsed) matches(o *Operation) bool {
	return (p.QP == 0 || p.QP == o.QP) && (p.CQ == 0 || p.CQ == o.CQ) && (p.Opcode == "" || p.opcode == o.Opcode) &&
		(p.Command == "" || p.command == o.Command) && (p.Event == "" || p.Event == o.Event)
}

// name turns a text of String into a name, as "remote-access-error".
func name(s string) string { return strings.ReplaceAll(s, " ", "-") }

// EventName returns the name of an asynchronous event in rules.
func EventName(t abi.EventType) string { return name(t.String()) }

// find returns the value with a name.
func find[T any](want string, at func(int) (T, string)) (v T, ok bool) {
	for i := range 256 {
		if v, is := at(i); strings.EqualFold(is, want) {
			return v, true
		}
	}
	return v, false
}

// eventNames returns the names of the asynchronous events.
func eventNames() (all []string) {
	for i := range 64 {
		if n := EventName(abi.EventType(i)); !strings.Contains(n, "(") {
			all = append(all, n)
		}
	}
	return all
}

// statusNames returns the statuses that command-fail can give.
func statusNames() (all []string) {
	for s := abi.StatusOK + 1; s < 64; s++ {
		if n := name(s.String()); !strings.Contains(n, "(") {
			all = append(all, n)
		}
	}
	return all
}

// completionNames returns the statuses that cqe-error can give.
func completionNames() (all []string) {
	for i := range 64 {
		s := abi.WCStatus(i)
		if n := name(s.String()); s != abi.WCSuccess && s != abi.WCWRFlushErr && !strings.Contains(n, "(") {
			all = append(all, n)
		}
	}
	return all
}

func list(kinds []Kind) string {
	var s []string
	for _, k := range kinds {
		s = append(s, string(k))
	}
	return strings.Join(s, ", ")
}

func names[V any](m map[string]V) string {
	var s []string
	for k := range m {
		s = append(s, k)
	}
	slices.Sort(s)
	return strings.Join(s, ", ")
}
