// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeexpr evaluates doneWhen of tasks: CEL expressions over a node, and over what ran on
// it before. It has no client and no clock.
package nodeexpr

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/utils/lru"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// CostLimit is the maximum cost of an evaluation, in the unit of the CEL library. An evaluation of
// this cost takes up to 10 ms.
const CostLimit = 20_000

// environments are the environments with the variables of expressions. They are created with the
// first expression: the base depends on feature gates, which flags can change.
var environments = sync.OnceValues(func() (*environment.EnvSet, error) {
	return environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions: []cel.EnvOption{
			cel.Variable("node", cel.MapType(cel.StringType, cel.DynType)),
			cel.Variable("before", cel.MapType(cel.StringType, cel.StringType)),
		},
	})
})

// Check returns an error if an expression of a client is not valid, without its position.
func Check(expression string) error {
	_, err := compile(expression, environment.NewExpressions)
	return err
}

// programs has the compiled expressions, by their text.
var programs = lru.New(100)

// Program is a compiled expression. It is safe for concurrent use.
type Program struct {
	program cel.Program
}

// Compile compiles a stored expression. It accepts every expression that Check of this version or
// of the previous one accepts, and keeps the last hundred.
func Compile(expression string) (*Program, error) {
	if known, ok := programs.Get(expression); ok {
		return known.(*Program), nil
	}
	program, err := compile(expression, environment.StoredExpressions)
	if err != nil {
		return nil, err
	}
	p := &Program{program}
	programs.Add(expression, p)
	return p, nil
}

func compile(expression string, kind environment.Type) (cel.Program, error) {
	set, err := environments()
	if err != nil {
		return nil, err
	}
	env, err := set.Env(kind)
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(expression)
	if issues.Err() != nil {
		return nil, errors.New(text(issues.Errors()[0].Message))
	}
	if output := ast.OutputType(); !output.IsExactType(cel.BoolType) && !output.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("must be of type bool, not %s", output)
	}
	return env.Program(ast, cel.CostLimit(CostLimit))
}

// text returns a message of the CEL library in one line, without the name of the container, which
// is always empty.
func text(message string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(message), " "), " (in container '')", "")
}

// Eval evaluates the expression for a node. An error means that it could not be evaluated, and
// counts as false: a field is missing, for example, or the cost limit is exceeded.
func (p *Program) Eval(node Node, before v1alpha1.NodeVersions) (bool, error) {
	result, _, err := p.program.Eval(map[string]any{"node": node.values, "before": versions(before)})
	switch {
	case err != nil && strings.Contains(err.Error(), "cost limit exceeded"):
		return false, fmt.Errorf("costs more than %d", CostLimit)
	case err != nil:
		return false, errors.New(text(err.Error()))
	}
	done, ok := result.(types.Bool)
	if !ok {
		return false, fmt.Errorf("must be of type bool, not %s", result.Type().TypeName())
	}
	return bool(done), nil
}
