package conform

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/arena"
	"github.com/falcon-vnic/vnic/guestlib/window"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Config configures a run of the checks.
type Config struct {
	URL   string         // of the function, as for guestlib.Open
	Match *regexp.Regexp // names of the checks to run; nil: all
	Wait  time.Duration  // time limit for required events; 0 means 20 s
	// Done, if set, is called with each result as soon as there is one.
	Done func(Result)
}

func (c *Config) defaults() {
	if c.Wait <= 0 {
		c.Wait = 20 * time.Second
	}
}

// quiet is how long to wait to see that a forbidden event does not happen.
const quiet = 30 * time.Millisecond

// check checks one requirement of a device.
type check struct {
	name    string
	clauses string // "DEV-503 DEV-504"
	needs   uint64 // features without which there is nothing to check
	run     func(t *T)
}

// checks lists all checks in the order of docs/abi.
var checks = slices.Concat(streamChecks, registerChecks, lifecycleChecks, memoryChecks, adminChecks, queueChecks, completionChecks, stateChecks,
	connectionChecks, iwarpChecks, sharedChecks, unreliableChecks, keyChecks, datagramChecks, windowChecks, pciChecks, vfChecks)

// Checks returns the names of the checks with their clauses.
func Checks() map[string][]string {
	all := map[string][]string{}
	for _, c := range checks {
		all[c.name] = strings.Fields(c.clauses)
	}
	return all
}

// Run runs the checks one after another. It returns an error only if they could not be run at all;
// the results of the checks are in the report.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	cfg.defaults()
	r := &Report{Kind: "device", Device: cfg.URL}
	id, err := identify(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	r.Function, r.Features = fmt.Sprintf("%#x", id.Function), id.Features
	for _, c := range checks {
		if cfg.Match != nil && !cfg.Match.MatchString(c.name) {
			continue
		}
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
		res := runCheck(ctx, &cfg, c, id.Features)
		r.Results = append(r.Results, res)
		if cfg.Done != nil {
			cfg.Done(res)
		}
	}
	r.Coverage = deviceCoverage(r.Results)
	return r, nil
}

// identify makes sure that the function exists, and returns its reply to a hello.
func identify(ctx context.Context, cfg *Config) (reply abi.HelloReply, err error) {
	t := newT(ctx, cfg)
	defer t.close()
	res := t.protect(func() {
		c := t.dial()
		reply = c.hello(abi.Hello{Major: abi.VersionMajor, Minor: abi.VersionMinor, Function: t.function, Features: ^uint64(0)})
		if reply.Status != abi.StatusOK {
			t.Fatalf("the device refuses the function: %s", reply.Status)
		}
		c.stream.goodbye()
	})
	if res != nil {
		return reply, fmt.Errorf("conform: %s: %s", cfg.URL, res.text)
	}
	return reply, nil
}

func runCheck(ctx context.Context, cfg *Config, c check, features uint64) Result {
	res := Result{Name: c.name, Clauses: strings.Fields(c.clauses), Outcome: Passed}
	if missing := c.needs &^ features; missing != 0 {
		res.Outcome, res.Detail = Skipped, fmt.Sprintf("the device does not offer feature bits %#x", missing)
		return res
	}
	start := time.Now()
	t := newT(ctx, cfg)
	if end := t.protect(func() { c.run(t) }); end != nil {
		res.Outcome, res.Detail = end.outcome, end.text
	}
	t.close()
	res.Millis = time.Since(start).Milliseconds()
	return res
}

// unchecked lists the clauses for devices that a client alone cannot check, with the reasons.
var unchecked = map[string]string{
	"DEV-947":  "nothing tells a client which path its packets take",
	"DEV-1012": "the kit attaches by the control block where the URL is a PCI device's: then each check is of it too",
	"DEV-1013": "the kit attaches by the control block where the URL is a PCI device's: then each check is of it too",
	"DEV-1014": "the kit attaches by the control block where the URL is a PCI device's: then each check is of it too",
	"DEV-1015": "the control block's package reads Full and rings as it must; cm.behind has messages that wait for room, where the URL is a PCI device's",
	"DEV-1016": "the control block's package refuses to write such a thing; the device's own tests do it",
	"DEV-1017": "the kit has its admin queues in memory; the device's own tests have them in a window",
	"DEV-1105": "it takes drivers of two functions at once, and of a slot one process has both; the device's own tests have them",
	"DEV-1005": "the window's package refuses to store such an index; the device's own tests do it",
	"DEV-1007": "how much ringing is too much is the device's own measure, and nothing is lost by it",
}

// pciDevice is the function's PCI device. A check opens it once, because with an IOMMU it cannot be
// opened twice. Its control block has one session at a time; all sessions share its memory.
type pciDevice struct {
	*window.PCI
	memory arena.Source
}

// borrowed is memory of a device that outlives the stream.
type borrowed struct{ arena.Source }

func (borrowed) Close() error { return nil }

// onPCI reports whether the function is reached as a PCI device.
func (t *T) onPCI() bool { return strings.HasPrefix(t.cfg.URL, "pci:") }

// memory returns the size of the memory that the device can access by one stream, in bytes; on PCI,
// by all streams of a check.
func (t *T) memory() int {
	if t.onPCI() {
		return 16 * clientMemory
	}
	return clientMemory
}

// redial opens another stream by the check's PCI device.
func (t *T) redial() *client {
	for _, c := range t.clients {
		if !c.stream.ended() {
			t.Skipf("a PCI device has one stream at a time")
		}
	}
	conn, err := guestlib.Redial(t.ctx, t.cfg.URL, t.device.memory)
	t.noError(err)
	return t.client(conn, borrowed{t.device.memory})
}

// pci returns the PCI device, or skips the check if there is none.
func (t *T) pci() *pciDevice {
	if t.device == nil {
		t.Skipf("the function is not reached by a PCI device of its own (--device pci://)")
	}
	return t.device
}
