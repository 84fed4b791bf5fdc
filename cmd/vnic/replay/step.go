package replay

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/internal/tape"
)

const stepHelp = `  n [COUNT]      the next Step, or so many; an empty line repeats n and c
  c [WHERE]      on: to this Step (12000) or so long after the first (1.5s), to
                 what break waits for, or to the end
  break [WHAT]   c stops at: violation, fault, qp-error, or a rule as DRV-602;
                 alone: nothing
  show [SUBJECT] the state: functions, connections, qps, queues, credits,
                 violations, counters; alone: all but the counters
  last [COUNT]   the last packets and what drivers did
  q              the end
`

// step replays by commands.
func (x *run) step(ctx context.Context) error {
	in, terminal := bufio.NewScanner(x.o.in), cli.IsTerminal(x.o.in)
	again := ""
	for {
		if terminal {
			x.o.say("(vnic) ")
		}
		if !in.Scan() {
			return in.Err()
		}
		words := strings.Fields(cmp.Or(strings.TrimSpace(in.Text()), again))
		if len(words) == 0 {
			continue
		}
		again = ""
		switch words[0] {
		case "n", "next", "c", "continue":
			again = words[0]
		case "q", "quit":
			return nil
		}
		err := x.command(ctx, words[0], words[1:])
		var d *tape.Difference
		switch {
		case errors.As(err, &d):
			return x.differs(d)
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			x.o.say("%v\n", err)
		}
	}
}

// command carries out a command.
func (x *run) command(ctx context.Context, name string, args []string) (err error) {
	arg := ""
	switch {
	case len(args) == 1:
		arg = args[0]
	case len(args) > 1:
		return fmt.Errorf("%s takes one argument at most", name)
	}
	p := &x.stop
	switch name {
	case "n", "next":
		n, err := count(arg, 1)
		if err != nil {
			return err
		}
		for ; n > 0 && err == nil; n-- {
			err = x.next(ctx)
		}
		return err
	case "c", "continue":
		p.steps, p.after = 0, 0
		if arg != "" {
			if err := p.parse(arg); err != nil {
				return err
			}
		}
		why, err := x.on(ctx, p)
		switch {
		case err != nil:
			return err
		case why == whyEnd:
			x.o.say("the end: %s\n", x.ended())
		default:
			x.o.say("%s: %s\n", x.here(), why)
		}
		return nil
	case "break":
		if p.what, err = parseBreak(arg); err == nil {
			p.seen = look(x.player.Shard, p.what) // what is there already is no reason to stop
		}
		return err
	case "show":
		return x.state().print(x.o.out, args...)
	case "last":
		n, err := count(arg, lastNotes)
		if err == nil {
			x.last(n)
		}
		return err
	case "help", "h", "?":
		x.o.say("%s", stepHelp)
		return nil
	}
	return fmt.Errorf("%q is not a command; help lists them", name)
}

// count reads how many of something.
func count(arg string, otherwise int) (int, error) {
	if arg == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(arg)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q: write how many", arg)
	}
	return n, nil
}

// next replays one Step, and prints what was in it.
func (x *run) next(ctx context.Context) error {
	x.tape.Entries(func(tape.Kind, int) {})
	why, err := x.on(ctx, &stop{steps: x.tape.Steps() + 1})
	if err != nil {
		return err
	}
	if why == whyEnd {
		return errors.New("the end of the recording")
	}
	var had []string
	x.tape.Entries(func(k tape.Kind, n int) {
		switch {
		case k == tape.Step, k == tape.StepEnd, k == tape.InboxEnd, k == tape.Flush:
		case n == 1:
			had = append(had, k.String())
		default:
			had = append(had, fmt.Sprintf("%d × %s", n, k))
		}
	})
	x.o.say("%s: %s\n", x.here(), cmp.Or(strings.Join(had, ", "), "nothing"))
	for _, n := range x.player.Notes() {
		if n.Step == x.tape.Steps() {
			x.o.say("  %s\n", n.What)
		}
	}
	return nil
}
