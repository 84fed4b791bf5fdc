package main

import (
	"context"
	"os"
	"sync"
)

// tryAll tries mutants in their order, o.jobs at once, and tells each outcome to tell, one at a
// time.
func tryAll(ctx context.Context, o options, mutants []mutant, tell func(mutant, outcome), warn func(string)) error {
	scratch, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	overlay, err := writeVariants(scratch, mutants)
	if err != nil {
		return err
	}
	base := &trials{
		reach: newReach(o, scratch, warn), overlay: overlay, slack: o.slack,
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	var (
		mu   sync.Mutex
		next int
		wg   sync.WaitGroup
	)
	take := func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		if next == len(mutants) || ctx.Err() != nil {
			return 0, false
		}
		next++
		return next - 1, true
	}
	for range o.jobs {
		wg.Go(func() {
			for i, ok := take(); ok; i, ok = take() {
				out, err := base.try(ctx, mutants[i], variant(i))
				if err != nil {
					cancel(err)
					return
				}
				mu.Lock()
				tell(mutants[i], out)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}
