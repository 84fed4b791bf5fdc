package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// A baseline knows for each package that its tests pass unchanged (else every change would seem to
// be noticed), and how long they take: a change under which they take far longer is noticed.
type baseline struct {
	root, scratch string
	limit         time.Duration // for tests of the unchanged package
	slack         time.Duration // what a mutant's tests are given beyond slackTimes theirs

	mu    sync.Mutex
	known map[string]*packageBaseline
}

type packageBaseline struct {
	once  sync.Once
	limit time.Duration
	err   error
}

// slackTimes is how many times longer than unchanged the tests of a mutant may take.
const slackTimes = 5

func (b *baseline) of(ctx context.Context, t tester) (time.Duration, error) {
	b.mu.Lock()
	if b.known == nil {
		b.known = map[string]*packageBaseline{}
	}
	p := b.known[t.pkg]
	if p == nil {
		p = &packageBaseline{}
		b.known[t.pkg] = p
	}
	b.mu.Unlock()
	p.once.Do(func() { p.limit, p.err = b.measure(ctx, t) })
	return p.limit, p.err
}

func (b *baseline) measure(ctx context.Context, t tester) (time.Duration, error) {
	scratch, err := os.MkdirTemp(b.scratch, "b")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(scratch)
	binary := filepath.Join(scratch, "test")
	if ok, err := build(ctx, b.root, t.pkg, binary); err != nil || !ok {
		return 0, orError(err, fmt.Errorf("%s: its tests do not compile", t.pkg))
	}
	began := time.Now()
	out, err := runTests(ctx, binary, t.dir, b.limit)
	if err != nil || out != survived {
		return 0, orError(err, fmt.Errorf("%s: its tests fail without any change: go test %s", t.pkg, t.pkg))
	}
	return b.slack + slackTimes*time.Since(began), nil
}

func orError(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}
