// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package usage reads the processor time and the memory of the processes of a development cluster
// from /proc.
package usage

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Cluster is the part of the cluster program's state file that lists the processes.
type Cluster struct {
	// Ports are the ports of the processes, by the names of their programs.
	Ports map[string]int `json:"ports"`
	// Processes are the processes, by the names of their programs.
	Processes map[string]Process `json:"processes"`
}

// Process is one process of the cluster.
type Process struct {
	PID int `json:"pid"`
}

// Open reads the processes of the cluster in a folder.
func Open(dir string) (Cluster, error) {
	content, err := os.ReadFile(filepath.Join(dir, "state.json"))
	if err != nil {
		return Cluster{}, err
	}
	var c Cluster
	return c, json.Unmarshal(content, &c)
}

// Memory is the memory of a process, in bytes.
type Memory struct {
	// Resident is the current resident memory of a process, Peak the maximum.
	Resident, Peak int64
	// File is the part of Resident that the kernel can drop and read again: pages of the program
	// itself, and of files that it maps, such as that of the embedded etcd.
	File int64
}

// Memory returns the current resident memory of a process, and the maximum since its start or the
// last ResetPeak.
func (p Process) Memory() (Memory, error) {
	content, err := os.ReadFile(p.file("status"))
	if err != nil {
		return Memory{}, err
	}
	return parseMemory(string(content))
}

// ResetPeak sets the peak to the current memory.
func (p Process) ResetPeak() error {
	return os.WriteFile(p.file("clear_refs"), []byte("5"), 0)
}

// CPU returns the processor time of a process so far, in the kernel and in user mode.
func (p Process) CPU() (time.Duration, error) {
	content, err := os.ReadFile(p.file("stat"))
	if err != nil {
		return 0, err
	}
	return parseCPU(string(content))
}

func (p Process) file(name string) string { return fmt.Sprintf("/proc/%d/%s", p.PID, name) }

// parseMemory parses /proc/PID/status.
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
		case "RssFile:":
			m.File = kilobytes << 10
		}
	}
	if m.Resident == 0 || m.Peak == 0 {
		return Memory{}, fmt.Errorf("no VmRSS or VmHWM in %q", status)
	}
	return m, nil
}

// tick is the unit of processor times in /proc. It is the same on all architectures that Go
// supports.
const tick = time.Second / 100

// parseCPU reads the fields 14 and 15 of /proc/PID/stat. Field 2 is the name of the program, which
// may contain spaces and parentheses.
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

// Cost is the cost of a process during a measurement.
type Cost struct {
	// CPU is the processor time.
	CPU time.Duration
	// Peak is the maximum of the resident memory, in bytes.
	Peak int64
}

// Meter measures the cost of all processes of a cluster since Start.
type Meter struct {
	processes map[string]Process
	before    map[string]time.Duration
}

// Start starts a measurement.
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

// Read returns the cost of each process since Start.
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

// Pause waits before figures are read.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
