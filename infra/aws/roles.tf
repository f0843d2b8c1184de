# What each process may ask of AWS. infra/check records what the processes ask of a bucket, and compares it with the
# documents that are named after them.
locals {
  objects = "${aws_s3_bucket.cell.arn}/${var.prefix}/*"
}

# S3 answers 404 for an object that is missing only to those who may list; to others it answers 403.
data "aws_iam_policy_document" "api" {
  statement {
    actions   = ["s3:GetObject", "s3:PutObject"]
    resources = [local.objects]
  }
  statement {
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.cell.arn]
  }
  statement {
    actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
    resources = [aws_kms_key.cell.arn]
  }
}

data "aws_iam_policy_document" "watcher" {
  statement {
    actions   = ["s3:GetObject", "s3:PutObject"]
    resources = [local.objects]
  }
  statement {
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.cell.arn]
  }
  statement {
    actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
    resources = [aws_kms_key.cell.arn]
  }
}

data "aws_iam_policy_document" "projector" {
  statement {
    actions   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
    resources = [local.objects]
  }
  statement {
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.cell.arn]
  }
  statement {
    actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
    resources = [aws_kms_key.cell.arn]
  }
}

data "aws_iam_policy_document" "lifecycle" {
  statement {
    actions   = ["s3:GetObject", "s3:PutObject"]
    resources = [local.objects]
  }
  statement {
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.cell.arn]
  }
  statement {
    actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
    resources = [aws_kms_key.cell.arn]
  }
}

data "aws_iam_policy_document" "expiry" {
  statement {
    actions   = ["s3:GetObject", "s3:PutObject"]
    resources = [local.objects]
  }
  statement {
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.cell.arn]
  }
  statement {
    actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
    resources = [aws_kms_key.cell.arn]
  }
}

# It deletes what it tried the bucket with, and nothing else.
data "aws_iam_policy_document" "init" {
  statement {
    actions   = ["s3:GetObject", "s3:PutObject"]
    resources = [local.objects]
  }
  statement {
    actions   = ["s3:DeleteObject"]
    resources = ["${aws_s3_bucket.cell.arn}/${var.prefix}/probe/*"]
  }
  statement {
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.cell.arn]
  }
  statement {
    actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
    resources = [aws_kms_key.cell.arn]
  }
}

data "aws_iam_policy_document" "assumed_by_functions" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["lambda.amazonaws.com"]
    }
  }
}

data "aws_iam_policy_document" "assumed_by_machines" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "function" {
  for_each           = local.functions
  name               = "${var.name}-${each.key}"
  assume_role_policy = data.aws_iam_policy_document.assumed_by_functions.json
}

resource "aws_iam_role_policy" "function" {
  for_each = local.functions
  name     = "cell"
  role     = aws_iam_role.function[each.key].id
  policy   = each.value.policy
}

# Whoever runs Logplane reads the files of the cell, and no other secret.
data "aws_iam_policy_document" "files" {
  statement {
    actions   = ["secretsmanager:GetSecretValue"]
    resources = [data.aws_secretsmanager_secret.files.arn]
  }
}

resource "aws_iam_role_policy" "files" {
  for_each = merge(aws_iam_role.function, aws_iam_role.machine)
  name     = "files"
  role     = each.value.id
  policy   = data.aws_iam_policy_document.files.json
}

# Logs, and the network interfaces of a function in a VPC.
resource "aws_iam_role_policy_attachment" "function" {
  for_each   = local.functions
  role       = aws_iam_role.function[each.key].name
  policy_arn = "arn:${data.aws_partition.current.partition}:iam::aws:policy/service-role/AWSLambdaVPCAccessExecutionRole"
}

# A machine of watchers also projects, and makes the cell if nobody has.
resource "aws_iam_role" "machine" {
  for_each           = toset(["watcher", "log"])
  name               = "${var.name}-${each.key}-machine"
  assume_role_policy = data.aws_iam_policy_document.assumed_by_machines.json
}

resource "aws_iam_role_policy" "watcher" {
  for_each = {
    watcher   = data.aws_iam_policy_document.watcher.json
    projector = data.aws_iam_policy_document.projector.json
    init      = data.aws_iam_policy_document.init.json
  }
  name   = each.key
  role   = aws_iam_role.machine["watcher"].id
  policy = each.value
}

data "aws_iam_policy_document" "rings" {
  statement {
    actions   = ["sqs:SendMessage"]
    resources = [aws_sqs_queue.doorbell.arn]
  }
}

resource "aws_iam_role_policy" "rings" {
  name   = "rings"
  role   = aws_iam_role.machine["watcher"].id
  policy = data.aws_iam_policy_document.rings.json
}

# What a machine needs to begin: its program, and a place for its log.
data "aws_iam_policy_document" "machine" {
  statement {
    actions   = ["s3:GetObject"]
    resources = ["arn:${data.aws_partition.current.partition}:s3:::${var.artifacts}/${var.release}/*"]
  }
  statement {
    actions   = ["logs:CreateLogStream", "logs:PutLogEvents"]
    resources = ["${aws_cloudwatch_log_group.machines.arn}:*"]
  }
}

resource "aws_iam_role_policy" "machine" {
  for_each = aws_iam_role.machine
  name     = "machine"
  role     = each.value.id
  policy   = data.aws_iam_policy_document.machine.json
}

resource "aws_iam_instance_profile" "machine" {
  for_each = aws_iam_role.machine
  name     = each.value.name
  role     = each.value.name
}
