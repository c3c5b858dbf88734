import pytest

from simplexcal.demo.__main__ import LOGITS, TEMPERATURES, main


def test_the_demo_prints_a_line_for_each_case(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.strip().startswith(tuple(LOGITS))]
    assert len(rows) == len(LOGITS) * len(TEMPERATURES)
    for row in rows:
        numbers = [float(x) for x in row.split()[-9:]]
        for exact, sampled, error in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
            assert error == pytest.approx(sampled - exact, abs=1.1e-4)  # printed to four digits
