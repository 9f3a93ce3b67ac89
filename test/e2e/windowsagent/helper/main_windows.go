// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command helper provides, under wine, the parts of a Windows node that the agent needs: the
// service of the kubelet, a container runtime at a named pipe, and the part of the service control
// manager that notifies services of a shutdown. It also prints settings that no tool of wine
// prints.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
)

// commands are the values of the first argument, with the number of further arguments.
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

// withCode adapts a function with a service and a control code to a command.
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
		return fmt.Errorf("unknown command or wrong number of arguments: %q", args)
	}
	return command.run(args[1:])
}

// show prints a value as a line of JSON.
func show(value any) error {
	return json.NewEncoder(os.Stdout).Encode(value)
}
