// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package windowsagent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

const (
	wineFolder = "/usr/lib/wine"
	wineLoader = wineFolder + "/wine64"
	wineServer = wineFolder + "/wineserver64"
	// commandTimeout is the timeout of a program that ends by itself.
	commandTimeout = time.Minute
)

// machine is a simulated Windows machine.
type machine struct {
	tb  testing.TB
	dir string
	// server is the wineserver process, which all Windows programs need.
	server *exec.Cmd
	ended  chan struct{}
}

// newMachine creates a wine prefix with the helper, and boots it.
func newMachine(tb testing.TB) *machine {
	tb.Helper()
	m := &machine{tb: tb, dir: tb.TempDir()}
	for _, folder := range []string{m.prefix(), filepath.Join(m.dir, "home")} {
		must.Do(tb, os.Mkdir(folder, 0o700))
	}
	tb.Cleanup(m.switchOff)
	m.switchOn("--init")
	// The Go runtime needs this library, which the wine of Debian 12 does not have.
	m.write(`C:\windows\system32\bcryptprimitives.dll`, forwardingDLL("bcryptprimitives.dll", "ProcessPrng", "advapi32.SystemFunction036"))
	for name, source := range map[string]string{
		"agent.exe": "haulout-node-agent.exe", "helper.exe": "helper.exe", "kubelet.exe": "helper.exe",
		"windows.test.exe": "windows.test.exe",
	} {
		content, err := os.ReadFile(filepath.Join(cluster.Root(), "bin", "windows", source))
		must.True(tb, err == nil, "%v (built by `make windows-agent`)", err)
		m.write(`C:\test\`+name, content)
	}
	// The first boot continues in the background after wineboot has ended.
	m.switchOff()
	m.switchOn("--restart")
	return m
}

func (m *machine) prefix() string { return filepath.Join(m.dir, "wine") }

// path returns the file on this machine for a file on drive C.
func (m *machine) path(file string) string {
	return filepath.Join(m.prefix(), "drive_c", filepath.FromSlash(strings.ReplaceAll(strings.TrimPrefix(file, `C:\`), `\`, "/")))
}

func (m *machine) write(file string, content []byte) {
	m.tb.Helper()
	path := m.path(file)
	must.Do(m.tb, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Do(m.tb, os.WriteFile(path, content, 0o644))
}

func (m *machine) read(file string) string {
	content, _ := os.ReadFile(m.path(file)) // a missing file is empty
	return string(content)
}

func (m *machine) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	home := filepath.Join(m.dir, "home")
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "XDG_RUNTIME_DIR=" + home, "WINEPREFIX=" + m.prefix(), "WINEARCH=win64", "WINEDEBUG=-all", "DISPLAY=",
		// Wine would offer to download these libraries.
		"WINEDLLOVERRIDES=mscoree,mshtml=",
	}
	// A program that continues to run, such as services.exe, keeps the pipes of its parent open.
	cmd.WaitDelay = time.Second
	return cmd
}

// switchOn boots the machine. "--init" installs Windows first. "--restart" starts the services with
// automatic start.
func (m *machine) switchOn(argument string) {
	m.tb.Helper()
	m.server = m.command(context.Background(), wineServer, "--foreground", "--persistent")
	must.Do(m.tb, m.server.Start())
	m.ended = make(chan struct{})
	go func() {
		defer close(m.ended)
		_ = m.server.Wait()
	}()
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	// Write to a file, because background programs would keep a pipe open.
	out := must.Get(os.Create(filepath.Join(m.dir, "wineboot.log")))(m.tb)
	defer out.Close()
	cmd := m.command(ctx, wineLoader, "wineboot", argument)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		log, _ := os.ReadFile(out.Name()) // only details of the error
		m.tb.Fatalf("wineboot %s: %v\n%s", argument, err, log)
	}
}

// switchOff ends all programs, like a power failure.
func (m *machine) switchOff() {
	m.tb.Helper()
	if m.ended == nil {
		return // the machine was never on
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	if out, err := m.command(ctx, wineServer, "--kill").CombinedOutput(); err != nil {
		m.tb.Errorf("wineserver --kill: %v\n%s", err, out)
	}
	select {
	case <-m.ended:
	case <-ctx.Done():
		m.tb.Errorf("wine did not end")
	}
}

// try runs a program and returns its output.
func (m *machine) try(program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := m.command(ctx, wineLoader, append([]string{`C:\test\` + program}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %q: %w\n%s%s", program, args, err, &stdout, &stderr)
	}
	return stdout.String(), nil
}

// run runs a program that must succeed, and returns its output.
func (m *machine) run(program string, args ...string) string {
	m.tb.Helper()
	return must.Get(m.try(program, args...))(m.tb)
}

// helper runs the helper and decodes its output, a line of JSON.
func (m *machine) helper(into any, args ...string) {
	m.tb.Helper()
	must.Do(m.tb, json.Unmarshal([]byte(m.run("helper.exe", args...)), into))
}

// start starts a program in the background. It ends together with the machine.
func (m *machine) start(args ...string) *bytes.Buffer {
	m.tb.Helper()
	var out bytes.Buffer
	cmd := m.command(context.Background(), wineLoader, append([]string{`C:\test\helper.exe`}, args...)...)
	cmd.Stderr = &out
	must.Do(m.tb, cmd.Start())
	go func() { _ = cmd.Wait() }()
	return &out
}

// The states of services.
const (
	stopped     = 1
	stopPending = 3
	running     = 4
)

// The controls that the tests send.
const (
	controlInterrogate = 4
	controlParamChange = 6
	controlPreshutdown = 15
)

// status is the status of a service, as the helper prints it.
type status struct {
	State, Accepts, CheckPoint, WaitHint, PID, ExitCode uint32
	Milliseconds                                        int64
}

// watch records the statuses of a service until it has stopped. The returned function waits for
// that and returns every status.
func (m *machine) watch(service string) (wait func() []status) {
	m.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*commandTimeout)
	cmd := m.command(ctx, wineLoader, `C:\test\helper.exe`, "watch", service)
	out := must.Get(cmd.StdoutPipe())(m.tb)
	must.Do(m.tb, cmd.Start())
	seen := make(chan []status, 1)
	first := make(chan struct{})
	go func() {
		var list []status
		decoder := json.NewDecoder(out)
		for {
			var s status
			if err := decoder.Decode(&s); err != nil {
				break
			}
			if list = append(list, s); len(list) == 1 {
				close(first)
			}
		}
		seen <- list
	}()
	framework.Eventually(m.tb, "the helper watches "+service, func(context.Context) (bool, error) {
		select {
		case <-first:
			return true, nil
		default:
			return false, nil
		}
	})
	return func() []status {
		m.tb.Helper()
		defer cancel()
		list := <-seen
		if err := cmd.Wait(); err != nil {
			m.tb.Errorf("watch %s: %v", service, err)
		}
		return list
	}
}
