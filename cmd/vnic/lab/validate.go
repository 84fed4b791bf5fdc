package lab

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/lab/labfile"
)

// outcome is the result of a check.
type outcome struct {
	labfile.Check
	took     time.Duration
	wrong    string // "": it passed
	hopeless bool   // its program is not there: another run would fail, too
	output   string // of the last run, no more than maxOutput
}

// maxOutput is how much of a command's output is kept.
const maxOutput = 64 << 10

// pause is the time between two runs of a check that waits.
const pause = 200 * time.Millisecond

// validate runs the checks of a lab's file one after the other and prints a row for each.
func (p *plan) validate(ctx context.Context, w io.Writer) (all []outcome) {
	for _, c := range p.Validate {
		o := outcome{Check: c}
		begun := time.Now()
		for o.run(ctx, p); o.wrong != "" && !o.hopeless && time.Since(begun) < c.Wait && ctx.Err() == nil; o.run(ctx, p) {
			time.Sleep(pause)
		}
		o.took = time.Since(begun)
		verdict := "PASS"
		if o.wrong != "" {
			verdict = "FAIL"
		}
		fmt.Fprintf(w, "%s  %6.2fs  %s\n", verdict, o.took.Seconds(), c.Name)
		if o.wrong != "" {
			fmt.Fprintf(w, "      %s\n", o.wrong)
			for line := range strings.Lines(strings.TrimRight(o.output, "\n")) {
				fmt.Fprintf(w, "      | %s\n", strings.TrimRight(line, "\n"))
			}
		}
		all = append(all, o)
	}
	return all
}

// run runs the check's command once.
func (o *outcome) run(ctx context.Context, p *plan) {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	out := &head{}
	var served chan error // of what runs with it, when it has ended
	if o.With != nil {
		beside, stop := context.WithCancel(ctx)
		defer stop()
		with, err := p.checking(beside, o.With, out)
		if err == nil {
			err = with.Start()
		}
		if err != nil {
			o.wrong, o.hopeless = err.Error(), absent(err)
			return
		}
		served = make(chan error, 1)
		ended := make(chan struct{})
		go func() {
			served <- with.Wait()
			close(ended)
		}()
		defer func() { stop(); <-ended }()
	}
	cmd, err := p.checking(ctx, o.Run, out)
	if err == nil {
		err = cmd.Run()
	}
	o.output = out.String()
	o.wrong, o.hopeless = o.failure(ctx, err), absent(err)
	select {
	case err := <-served: // by itself; most are ended with the check
		if err != nil && o.wrong == "" && !o.Fails {
			o.wrong = fmt.Sprintf("what runs with it: %v", err)
		}
	default:
	}
}

// checking returns a command of a check. When ctx ends it is killed with all that it started.
func (p *plan) checking(ctx context.Context, words []string, out io.Writer) (*exec.Cmd, error) {
	cmd, err := p.command(ctx, words[0], words[1:]...)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	return cmd, nil
}

// failure returns what is wrong with a run, or "".
func (o *outcome) failure(ctx context.Context, err error) string {
	var exit *exec.ExitError
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return "interrupted"
	case ctx.Err() != nil:
		return fmt.Sprintf("not done after %v", o.Timeout)
	case err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay):
		return err.Error()
	case exit != nil && !o.Fails:
		return exit.String()
	case exit == nil && o.Fails:
		return "it succeeds, and should fail"
	}
	if ok, err := o.Matches(o.output); err != nil || !ok {
		return fmt.Sprintf("its output does not match %q", o.Output)
	}
	return ""
}

// absent tells whether a command failed because there is no such program.
func absent(err error) bool {
	var exit *exec.ExitError
	return errors.Is(err, exec.ErrNotFound) || errors.As(err, &exit) && exit.ExitCode() == 127 // as in POSIX's shells
}

// head keeps the beginning of what is written to it.
type head struct {
	mu sync.Mutex // a check has two writers
	b  []byte
}

func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.b = append(h.b, p[:min(len(p), maxOutput-len(h.b))]...)
	return len(p), nil
}

func (h *head) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return string(h.b)
}

// failed returns an error if checks failed.
func failed(all []outcome) error {
	n := 0
	for _, o := range all {
		if o.wrong != "" {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d checks failed", n, len(all))
}

// JUnit's format, as far as CI systems read it.
type (
	junitSuite struct {
		XMLName  xml.Name    `xml:"testsuite"`
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Time     string      `xml:"time,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Class   string        `xml:"classname,attr"`
		Name    string        `xml:"name,attr"`
		Time    string        `xml:"time,attr"`
		Failure *junitFailure `xml:"failure,omitempty"`
		Output  string        `xml:"system-out,omitempty"`
	}
	junitFailure struct {
		Message string `xml:"message,attr"`
	}
)

// writeJUnit writes the outcomes to a file. broken is the error of the lab itself, if it has one.
func writeJUnit(path, lab string, all []outcome, broken error) error {
	s := junitSuite{Name: lab, Tests: len(all)}
	var sum time.Duration
	for _, o := range all {
		c := junitCase{Class: lab, Name: o.Name, Time: seconds(o.took), Output: o.output}
		if o.wrong != "" {
			c.Failure = &junitFailure{o.wrong}
			s.Failures++
		}
		sum += o.took
		s.Cases = append(s.Cases, c)
	}
	if broken != nil {
		s.Tests++
		s.Failures++
		s.Cases = append(s.Cases, junitCase{Class: lab, Name: "up", Time: "0", Failure: &junitFailure{broken.Error()}})
	}
	s.Time = seconds(sum)
	b, err := xml.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(append([]byte(xml.Header), b...), '\n'), 0o644)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }
