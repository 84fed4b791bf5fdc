package conform

import (
	"context"
	"encoding/hex"
	"fmt"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Watch reports which rules a driver broke while drive ran: the violations of the function that the
// device remembers afterwards and did not remember before. The function must be free before and
// after drive. If drive is nil, all violations that the device remembers count.
func Watch(ctx context.Context, cfg Config, drive func(context.Context) error) (*Report, error) {
	cfg.defaults()
	id, err := identify(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	r := &Report{Kind: "driver", Device: cfg.URL, Function: fmt.Sprintf("%#x", id.Function), Features: id.Features}
	var before []abi.Violation
	if drive != nil {
		if before, err = remembered(ctx, &cfg); err != nil {
			return nil, err
		}
		if err := drive(ctx); err != nil {
			r.Results = append(r.Results, Result{Name: "the driver", Outcome: Failed, Detail: err.Error()})
		}
	}
	after, err := remembered(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	broken := difference(before, after)
	for i := range abi.Clauses {
		clause, unseen := abi.Clauses[i].Clause.String(), abi.Clauses[i].Unseen
		if unseen != "" {
			r.Coverage = append(r.Coverage, Coverage{Clause: clause, State: "unchecked", Reason: unseen})
			continue
		}
		res := Result{Name: clause, Clauses: []string{clause}, Outcome: Passed}
		for _, v := range broken {
			if abi.Clause(v.Clause).String() == clause {
				res.Outcome = Failed
				if res.Detail != "" {
					res.Detail += "; "
				}
				res.Detail += describe(&v)
			}
		}
		r.Results = append(r.Results, res)
		r.Coverage = append(r.Coverage, Coverage{Clause: clause, State: string(res.Outcome), Checks: []string{clause}})
	}
	return r, nil
}

// remembered asks the device for the violations that it remembers.
func remembered(ctx context.Context, cfg *Config) (list []abi.Violation, err error) {
	t := newT(ctx, cfg)
	defer t.close()
	if end := t.protect(func() { list = t.ready().violations() }); end != nil {
		return nil, fmt.Errorf("conform: %s: %s", cfg.URL, end.text)
	}
	return list, nil
}

// difference returns the violations that happened between before and after.
func difference(before, after []abi.Violation) (list []abi.Violation) {
	type key struct {
		clause uint16
		ring   abi.Ring
		queue  uint32
	}
	count := map[key]uint32{}
	for _, v := range before {
		count[key{v.Clause, v.Ring, v.Queue}] = v.Count
	}
	for _, v := range after {
		if old := count[key{v.Clause, v.Ring, v.Queue}]; v.Count > old {
			v.Count -= old
			list = append(list, v)
		}
	}
	return list
}

func describe(v *abi.Violation) string {
	return fmt.Sprintf("%s, queue %#x, index %d, %d times, bytes %s", v.Ring, v.Queue, v.Index, v.Count, hex.EncodeToString(v.Bytes[:min(int(v.Length), len(v.Bytes))]))
}
