/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

// Package usage reads what the processes of a development cluster take of the machine, from what
// Linux says of them.
package usage

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Cluster is what the cluster program notes of the processes that it has started.
type Cluster struct {
	// Ports are where they listen.
	Ports map[string]int `json:"ports"`
	// Processes are by the names of their programs.
	Processes map[string]Process `json:"processes"`
}

// Process is one of them.
type Process struct {
	PID int `json:"pid"`
}

// Open reads which processes the cluster in a folder has.
func Open(dir string) (Cluster, error) {
	content, err := os.ReadFile(filepath.Join(dir, "state.json"))
	if err != nil {
		return Cluster{}, err
	}
	var c Cluster
	return c, json.Unmarshal(content, &c)
}

// Memory is in bytes.
type Memory struct {
	// Resident is what a process has of the machine's memory, Peak the most that it had.
	Resident, Peak int64
}

// Memory returns what a process takes, and took at the most since it was started or since
// ResetPeak.
func (p Process) Memory() (Memory, error) {
	content, err := os.ReadFile(p.file("status"))
	if err != nil {
		return Memory{}, err
	}
	return parseMemory(string(content))
}

// ResetPeak has Memory forget the peak so far.
func (p Process) ResetPeak() error {
	return os.WriteFile(p.file("clear_refs"), []byte("5"), 0)
}

// CPU returns the time that a process has spent on the processors so far, in the kernel and out of
// it.
func (p Process) CPU() (time.Duration, error) {
	content, err := os.ReadFile(p.file("stat"))
	if err != nil {
		return 0, err
	}
	return parseCPU(string(content))
}

func (p Process) file(name string) string { return fmt.Sprintf("/proc/%d/%s", p.PID, name) }

// parseMemory reads the text that Linux has about the status of a process.
func parseMemory(status string) (Memory, error) {
	var m Memory
	lines := bufio.NewScanner(strings.NewReader(status))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 || fields[2] != "kB" {
			continue
		}
		kilobytes, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return Memory{}, err
		}
		switch fields[0] {
		case "VmRSS:":
			m.Resident = kilobytes << 10
		case "VmHWM:":
			m.Peak = kilobytes << 10
		}
	}
	if m.Resident == 0 || m.Peak == 0 {
		return Memory{}, fmt.Errorf("no VmRSS or VmHWM in %q", status)
	}
	return m, nil
}

// tick is the unit in which Linux tells processes how long they were on a processor. It is the same
// on all architectures that Go knows.
const tick = time.Second / 100

// parseCPU reads the fields 14 and 15 of the line that Linux has about a process. The second is the
// name of the program, which may contain blanks and parentheses itself.
func parseCPU(stat string) (time.Duration, error) {
	end := strings.LastIndexByte(stat, ')')
	fields := strings.Fields(stat[end+1:])
	if end < 0 || len(fields) < 13 {
		return 0, fmt.Errorf("no times in %q", stat)
	}
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}

// Cost is what a process took while something was measured.
type Cost struct {
	// CPU is the time on the processors.
	CPU time.Duration
	// Peak is the most memory that was resident, in bytes.
	Peak int64
}

// Meter measures all processes of a cluster from a point in time on.
type Meter struct {
	processes map[string]Process
	before    map[string]time.Duration
}

// Start begins to measure.
func (c Cluster) Start() (*Meter, error) {
	m := &Meter{processes: maps.Clone(c.Processes), before: map[string]time.Duration{}}
	for name, p := range m.processes {
		if err := p.ResetPeak(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		var err error
		if m.before[name], err = p.CPU(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return m, nil
}

// Read returns what each process took since.
func (m *Meter) Read() (map[string]Cost, error) {
	out := make(map[string]Cost, len(m.processes))
	for name, p := range m.processes {
		cpu, err := p.CPU()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		memory, err := p.Memory()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out[name] = Cost{CPU: cpu - m.before[name], Peak: memory.Peak}
	}
	return out, nil
}
