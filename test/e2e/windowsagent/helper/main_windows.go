// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command helper stands in, under wine, for what a Windows node has beside the agent: the service
// of the kubelet, a container runtime at a named pipe, and the part of the service control manager
// that tells services of a shutdown. It also shows what wine's own tools do not.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
)

// commands are what the first argument may be, with the number of arguments that follow.
var commands = map[string]struct {
	arguments int
	run       func(args []string) error
}{
	"kubelet":  {1, func(args []string) error { return runKubelet(args[0]) }},
	"runtime":  {3, func(args []string) error { return runRuntime(args[0], args[1], args[2]) }},
	"send":     {2, func(args []string) error { return withCode(send, args) }},
	"create":   {2, func(args []string) error { return create(args[0], args[1]) }},
	"start":    {1, func(args []string) error { return start(args[0]) }},
	"stop":     {1, func(args []string) error { return control(args[0], controlStop) }},
	"status":   {1, func(args []string) error { return showStatus(args[0]) }},
	"watch":    {1, func(args []string) error { return watch(args[0]) }},
	"config":   {1, func(args []string) error { return showConfig(args[0]) }},
	"order":    {1, func(args []string) error { return setOrder(args[0]) }},
	"registry": {0, func([]string) error { return showRegistry() }},
	"control":  {2, func(args []string) error { return withCode(control, args) }},
}

// withCode calls a function that takes a service and a control.
func withCode(act func(service string, code uint32) error, args []string) error {
	code, err := strconv.ParseUint(args[1], 10, 32)
	if err != nil {
		return err
	}
	return act(args[0], uint32(code))
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("a command is missing")
	}
	command, found := commands[args[0]]
	if !found || len(args)-1 != command.arguments {
		return fmt.Errorf("%q is no command with its arguments", args)
	}
	return command.run(args[1:])
}

// show writes a line of JSON.
func show(value any) error {
	return json.NewEncoder(os.Stdout).Encode(value)
}
