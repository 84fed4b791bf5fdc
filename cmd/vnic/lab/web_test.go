package lab_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// TestEachHostOfALabHasAPage: each page shows the NIC of its host, and no page is left when the command
// ends.
func TestEachHostOfALabHasAPage(t *testing.T) { apart(t, "TestInsideEachHostOfALabHasAPage") }

func TestInsideEachHostOfALabHasAPage(t *testing.T) {
	inside(t)
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	refused(t, "lab", "web")
	vnic(t, "lab", "up", file(t, pair))
	defer vnic(t, "lab", "down")
	vnictest.RequireIn(t, refused(t, "lab", "web", "--port", "65535"), "--port 65535", "2 hosts", "at most 65534")
	cmd := exec.Command(os.Getenv(programVariable), "lab", "web", "--port", "0", "--json")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var pages []struct{ Host, URL string }
	if err := json.NewDecoder(out).Decode(&pages); err != nil || len(pages) != 2 {
		t.Fatalf("%v: %+v", err, pages)
	}
	for _, p := range pages {
		if text, err := firstState(p.URL); err != nil || !strings.Contains(text, fmt.Sprintf(`"name":%q`, p.Host)) {
			t.Errorf("%s: %v: %.300s", p.Host, err, text)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := firstState(pages[0].URL); err == nil {
		t.Error("a page is left")
	}
	// A NIC that is down has no process.
	for _, pid := range pidsOf("run -c", "a.yaml") {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	down := regexp.MustCompile(`(?m)^a +down .* -$`)
	vnictest.Eventually(t, "a NIC without a process", func() error {
		if said := vnic(t, "lab", "status"); !down.MatchString(said) {
			return errors.New(said)
		}
		return nil
	})
}

// firstState returns the first state that a page gets.
func firstState(url string) (string, error) {
	resp, err := http.Get(url + "events")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "data: ") {
			return lines.Text(), nil
		}
	}
	return "", fmt.Errorf("no state: %w", lines.Err())
}
