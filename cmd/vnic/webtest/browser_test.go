package webtest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

func TestMain(m *testing.M) { vnictest.Main(m) }

// browser is a tab of headless Chromium.
type browser struct {
	t   testing.TB
	ctx context.Context

	mu       sync.Mutex
	failures []string // errors that the page's scripts did not handle, and what the browser refused
}

// open starts a browser with a page. The test fails at its end if the page did something wrong, but
// for what expected lists.
func open(t testing.TB, url string, expected ...string) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	vnictest.Require(t, err == nil, "chromium is not installed")
	temp, err := os.MkdirTemp("", "web") // it leaves folders there; t.TempDir is too long for its socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(temp) })
	options := []chromedp.ExecAllocatorOption{
		chromedp.Env("TMPDIR=" + temp),
		chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()), chromedp.WindowSize(1360, 1000), chromedp.WSURLReadTimeout(vnictest.Limit),
	}
	for _, flag := range []string{"headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking", "disable-component-update", "disable-sync"} {
		options = append(options, chromedp.Flag(flag, true))
	}
	process, end := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(end)
	ctx, closeTab := chromedp.NewContext(process)
	t.Cleanup(closeTab)
	b := &browser{t: t, ctx: ctx}
	err = chromedp.Listen(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			text := e.ExceptionDetails.Text
			if x := e.ExceptionDetails.Exception; x != nil {
				text += " " + x.Description
			}
			b.failures = append(b.failures, text)
		case *log.EventEntryAdded:
			b.failures = append(b.failures, e.Entry.Text+" "+e.Entry.URL)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, f := range b.failures {
			if !slices.ContainsFunc(expected, func(e string) bool { return strings.Contains(f, e) }) {
				t.Errorf("the page: %s", f)
			}
		}
	})
	b.do(command(log.Enable, cdp.Empty{}), chromedp.Navigate(url))
	return b
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, vnictest.Limit)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// command returns the action of a command of the DevTools protocol.
func command[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, c, params)
		return err
	})
}

// colours makes the browser one of a user who prefers light or dark.
func colours(scheme string) chromedp.Action[chromedp.Void] {
	return command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
}

// eval returns what an expression of JavaScript is in the page.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, vnictest.Limit)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatal(err)
	}
	return v
}

// run has an expression carried out.
func (b *browser) run(expression string) {
	b.t.Helper()
	eval[bool](b, "("+expression+", true)")
}

// until waits until an expression is true.
func (b *browser) until(expression string) {
	b.t.Helper()
	for end := time.Now().Add(vnictest.Limit); !eval[bool](b, "!!("+expression+")"); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("the page never has %s; it shows\n%s", expression, b.text("body"))
		}
	}
}

// text returns the text of an element.
func (b *browser) text(selector string) string {
	b.t.Helper()
	return eval[string](b, fmt.Sprintf("document.querySelector(%s).innerText", quote(selector)))
}

// texts returns the text of all elements that a selector matches.
func (b *browser) texts(selector string) []string {
	b.t.Helper()
	return eval[[]string](b, fmt.Sprintf("[...document.querySelectorAll(%s)].map((e) => e.textContent)", quote(selector)))
}

// keys presses keys: characters, or those of package kb. As with a keyboard, a key that the page takes
// for itself writes nothing.
func (b *browser) keys(keys ...string) {
	b.t.Helper()
	for _, r := range strings.Join(keys, "") {
		events := kb.Encode(r)
		if len(events) == 3 { // down, the character, up
			events[0].Text = events[1].Text
			events = slices.Delete(events, 1, 2)
		}
		for _, e := range events {
			b.do(command(input.DispatchKeyEvent, *e))
		}
	}
}

// focused returns the text of the element that has the focus, or its id.
func (b *browser) focused() string {
	b.t.Helper()
	return eval[string](b, "document.activeElement.id || document.activeElement.textContent")
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}
